"""Tiny `LLM`s with every kind of drafter, for tests of the engine."""

from __future__ import annotations

import tempfile
from copy import copy
from functools import cache
from pathlib import Path

import torch

from draftproof import LLM
from draftproof.models.drafters import load_drafter, write_random_checkpoint
from draftproof.models.drafters.base import Drafter
from draftproof.models.executor import TargetModel
from draftproof.models.fused import FusedTarget, Precision, build_spec
from support.tiny import make_model, make_target
from support.tiny_tokenizers import tiny_tokenizer

END = 2
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinking %}hm {% endif %}{% endif %}"
)


Executor = torch.dtype | Precision
"""The Transformers executor in a dtype, or the fused one in a precision."""
EXECUTORS: list[Executor] = [torch.float32, torch.bfloat16, *Precision]


def named(executor: Executor) -> str:
    """For the names of tests."""
    return f"fused {executor.value}" if isinstance(executor, Precision) else str(executor)


def _target(kind: str, executor: Executor, vocab: int) -> TargetModel:
    if isinstance(executor, torch.dtype):
        return make_target(kind, executor, vocab=vocab)
    model = make_model(kind, torch.float32, 0, 0.12, vocab)
    spec = build_spec(model.config, model.state_dict())
    assert spec is not None
    return FusedTarget(spec, executor, kind)


@cache
def tiny_llm(kind: str = "llama", dtype: Executor = torch.float32) -> LLM:
    """A random model of an architecture with a byte-level tokenizer, without a drafter."""
    tokenizer = copy(tiny_tokenizer("byte_level"))
    tokenizer.chat_template = CHAT_TEMPLATE
    target = _target(kind, dtype, len(tokenizer))
    return LLM.from_parts(target, tokenizer, end_token_ids=frozenset({END}), draft_mode="fixed=15")


def make_drafter(llm: LLM, kind: str, block_size: int) -> Drafter:
    """``ngram``, ``dflash`` or ``dflash2`` (both with random weights)."""
    if kind == "ngram":
        return load_drafter("ngram", llm.target.info, block_size)
    info = llm.target.info
    with tempfile.TemporaryDirectory() as folder:
        write_random_checkpoint(
            Path(folder),
            hidden_size=info.hidden_size,
            vocab_size=info.vocab_size,
            num_target_layers=info.num_layers,
            target_layer_ids=(0, 2, 3),
            dflash2=kind == "dflash2",
        )
        return load_drafter(folder, info, block_size)
