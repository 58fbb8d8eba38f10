"""A tiny target and a drafter that really drafts for it, both trained in a few seconds on a language made up for this.

The language: a colour and a letter, then letters without end. Each colour has its own order of the alphabet, in which the
answer goes on from the letter; without the chat template the colours mean other orders. So the next letters follow from
the last one and from what only the hidden states tell: the colour, and whether there was a template. The drafter learns the
answers through the template, and nothing else.
"""

from __future__ import annotations

import atexit
import random
import string
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from draftproof.models.drafters import write_random_checkpoint
from draftproof.models.drafters.config import read_config
from draftproof.train.blocks import make_batch
from draftproof.train.features import Sample
from draftproof.train.model import TrainableDrafter

COLOURS = ("red", "green", "blue")
LETTERS = string.ascii_lowercase[:20]
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|spare 1|>", "<|spare 2|>", "<|spare 3|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MASK, BLOCK, TAPS, SCALE = 5, 5, (1, 2), 8.0
"""Of the drafter: the third spare token, the anchor and four drafts, layers, the root of the hidden size."""
ANSWER = 24
_HIDDEN, _LAYERS = 64, 4


@dataclass(frozen=True)
class TrainedPair:
    """Folders of both, in the layouts that users have."""

    target: Path
    drafter: Path


def prompts() -> list[str]:
    """All of the language's prompts, colours in turn."""
    return [f"{colour} {letter}" for letter in LETTERS for colour in COLOURS]


def answer(prompt: str, templated: bool, length: int = ANSWER) -> str:
    """How the language goes on."""
    colour, letter = prompt.split()
    order = _order(colour, templated)
    start = order.index(letter) + 1
    return "".join(order[(start + index) % len(order)] for index in range(length))


def _order(colour: str, templated: bool) -> str:
    letters = list(LETTERS)
    random.Random(f"{colour} {templated}").shuffle(letters)
    return "".join(letters)


@cache
def trained_pair() -> TrainedPair:
    """The pair, made once a process; it is gone when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="trained-pair-")
    atexit.register(folder.cleanup)
    return make_pair(Path(folder.name))


def make_pair(folder: Path) -> TrainedPair:
    """Train both and save them."""
    torch.manual_seed(0)
    tokenizer = _tokenizer()
    model = _train_target(tokenizer)
    pair = TrainedPair(folder / "target", folder / "drafter")
    model.save_pretrained(pair.target)
    tokenizer.save_pretrained(pair.target)
    _train_drafter(model, tokenizer, pair.drafter)
    return pair


def _tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _texts(tokenizer: PreTrainedTokenizerFast, templated: bool) -> list[tuple[list[int], int]]:
    """Token ids and the answer's start, of every prompt."""
    texts = []
    for prompt in prompts():
        head = f"<|user|>{prompt}<|end|><|assistant|>" if templated else prompt
        start = tokenizer(head, add_special_tokens=False)["input_ids"]
        rest = tokenizer(answer(prompt, templated), add_special_tokens=False)["input_ids"]
        texts.append(([*start, *rest], len(start)))
    return texts


def _train_target(tokenizer: PreTrainedTokenizerFast, steps: int = 140) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=_HIDDEN,
        intermediate_size=128,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=0,
        tie_word_embeddings=True,
        initializer_range=0.08,
    )
    model = LlamaForCausalLM(config)
    texts = _texts(tokenizer, True) + _texts(tokenizer, False)
    longest = max(len(ids) for ids, _ in texts)
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    labels = torch.full((len(texts), longest), -100)
    for row, (tokens, start) in enumerate(texts):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, start : len(tokens)] = torch.tensor(tokens[start:])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps, pct_start=0.1)
    for _ in range(steps):
        chosen = torch.randperm(len(texts))[:32]
        logits = model(input_ids=ids[chosen], use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[chosen][:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


@torch.no_grad()
def _samples(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> list[Sample]:
    samples = []
    for tokens, start in _texts(tokenizer, True):
        ids = torch.tensor(tokens)
        states = model(input_ids=ids[None], output_hidden_states=True).hidden_states
        features = torch.cat([states[tap + 1][0] for tap in TAPS], -1)  # entry 0 is the embedding
        samples.append(Sample(ids, start, features, None, None))
    return samples


def _train_drafter(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    write_random_checkpoint(
        folder,
        hidden_size=_HIDDEN,
        vocab_size=len(tokenizer),
        num_target_layers=_LAYERS,
        target_layer_ids=TAPS,
        block_size=BLOCK,
        num_layers=2,
        intermediate_size=128,
        mask_token_id=MASK,
        dflash_config={"input_embedding_scale": SCALE},
    )
    drafter = _trainable(model, folder)
    _fit(drafter, _samples(model, tokenizer), steps=220, right=BLOCK - 1, shortest=BLOCK)
    save_drafter(folder, drafter.published_tensors())


def unlearn_slots(pair: TrainedPair, folder: Path, first: int) -> None:
    """Make the slots from `first` on of a copy of the pair's drafter as if they had never been trained.

    Leaving them out of the training from the start would not do: so regular a language is guessed a few slots further.
    """
    model = LlamaForCausalLM.from_pretrained(pair.target)
    drafter = _trainable(model, folder)
    drafter.load_published(load_file(folder / "model.safetensors"))
    torch.manual_seed(0)
    _fit(drafter, _samples(model, _tokenizer()), steps=80, right=first - 1, shortest=first)
    save_drafter(folder, drafter.published_tensors())


def _trainable(model: LlamaForCausalLM, folder: Path) -> TrainableDrafter:
    head = model.get_output_embeddings().weight
    return TrainableDrafter(read_config(folder), model.get_input_embeddings().weight, head)


def _fit(drafter: TrainableDrafter, samples: list[Sample], steps: int, right: int, shortest: int) -> None:
    """Train slots 1 to `right` on what the texts say, and those behind to repeat the anchor.

    Blocks have from `shortest` to `BLOCK` slots, anchor included.
    """
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randperm(len(samples), generator=generator)[:12]
        size = shortest + int(torch.randint(BLOCK - shortest + 1, (), generator=generator))
        batch = make_batch([samples[index] for index in chosen], 12, size, MASK, generator)
        labels = batch.labels.clone()
        labels[:, right:] = batch.block_ids[:, :1]
        logits = drafter.logits(drafter(batch))
        loss = functional.cross_entropy(logits[batch.valid], labels[batch.valid])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def save_drafter(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Replace a checkpoint's weights."""
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
