"""Random drafters, samples and targets for the training tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from draftproof.models.drafters import ContextUpdate, TargetInfo, write_random_checkpoint
from draftproof.models.drafters.checkpoint import read_checkpoint
from draftproof.models.drafters.config import DrafterConfig, read_config
from draftproof.models.drafters.dflash import DFlashDrafter
from draftproof.train.features import Sample
from draftproof.train.model import TrainableDrafter

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
HIDDEN, VOCAB, DEPTH, TAPS = 32, 61, 10, (1, 4, 8)


def tables(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A random embedding and LM head."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    return embedding, torch.randn(VOCAB, HIDDEN, generator=generator) * 3 * HIDDEN**-0.5


def info(embedding: torch.Tensor, head: torch.Tensor, depth: int = DEPTH) -> TargetInfo:
    return TargetInfo(
        name="tiny",
        hidden_size=embedding.shape[1],
        num_layers=depth,
        vocab_size=embedding.shape[0],
        max_position=4096,
        embedding=embedding,
        lm_head=lambda rows: rows @ head.T,
        dtype=embedding.dtype,
        device=torch.device("cpu"),
        model_type="tiny",
    )


def checkpoint(folder: Path, **options: Any) -> Path:
    """A random checkpoint for `tables()`; options as of `write_random_checkpoint`."""
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_target_layers": DEPTH, "target_layer_ids": TAPS}
    return write_random_checkpoint(folder, **{**sizes, **options})


def trainable(
    folder: Path, embedding: torch.Tensor, head: torch.Tensor, depth: int = DEPTH
) -> TrainableDrafter:
    """The checkpoint as a model to train."""
    model = TrainableDrafter(read_config(folder, depth), embedding, head)
    model.load_published(load_file(folder / "model.safetensors"))
    return model


def reference(folder: Path, embedding: torch.Tensor, head: torch.Tensor, depth: int = DEPTH) -> DFlashDrafter:
    """The checkpoint as the engine's reference runs it, in float32."""
    read = read_checkpoint(folder, info(embedding, head, depth))
    return DFlashDrafter(read, info(embedding, head, depth), read.config.block_size, torch.float32)


def reference_hidden(
    drafter: DFlashDrafter, features: torch.Tensor, anchor: int, token: int, block_size: int
) -> torch.Tensor:
    """What the engine's reference makes of one block: ``[block_size - 1, hidden]``."""
    state = drafter.new_state()
    if anchor:
        drafter.extend([ContextUpdate(state, features[:anchor].float(), 0)])
    ids = [token] + [drafter.config.mask_token_id] * (block_size - 1)
    return drafter.block_hidden([state], [ids])[1:]


def sample(
    length: int, response_start: int, seed: int = 0, top_k: int = 0, width: int = len(TAPS) * HIDDEN
) -> Sample:
    """Random tokens and features."""
    generator = torch.Generator().manual_seed(seed)
    rows = length - response_start
    logprobs = torch.randn(rows, VOCAB, generator=generator).log_softmax(-1)
    top = logprobs.topk(top_k, -1) if top_k else None
    return Sample(
        token_ids=torch.randint(0, VOCAB, (length,), generator=generator),
        response_start=response_start,
        features=torch.randn(length, width, generator=generator),
        top_ids=None if top is None else top.indices.int(),
        top_logprobs=None if top is None else top.values,
    )


def plain_config(folder: Path, **options: Any) -> DrafterConfig:
    return read_config(checkpoint(folder, **options), DEPTH)
