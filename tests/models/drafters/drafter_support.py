"""Small targets and checkpoints for the drafter tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftproof.models.drafters import (
    ContextUpdate,
    Drafter,
    DraftRequest,
    DraftSampling,
    TargetInfo,
    write_random_checkpoint,
)

GOLDEN = Path(__file__).parents[2] / "data" / "golden"

HIDDEN, VOCAB, DEPTH, TAPS = 32, 61, 10, (1, 4, 8)


@dataclass(frozen=True)
class TinyTarget:
    """What a drafter borrows, random. `head` is ``[vocab, hidden]``."""

    info: TargetInfo
    head: torch.Tensor


def tiny_target(
    hidden: int = HIDDEN,
    vocab: int = VOCAB,
    depth: int = DEPTH,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
) -> TinyTarget:
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(vocab, hidden, generator=generator).to(dtype)
    head = (torch.randn(vocab, hidden, generator=generator) * 3 * hidden**-0.5).to(dtype)
    return TinyTarget(target_info(embedding, head, depth), head)


def target_info(embedding: torch.Tensor, head: torch.Tensor, depth: int) -> TargetInfo:
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


def tiny_checkpoint(folder: Path, **options: Any) -> Path:
    """A random checkpoint for `tiny_target()`; options as of `write_random_checkpoint`."""
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_target_layers": DEPTH, "target_layer_ids": TAPS}
    return write_random_checkpoint(folder, **{**sizes, **options})


def random_features(count: int, seed: int = 0, width: int = len(TAPS) * HIDDEN) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def draft_request(
    state: Any,
    length: int,
    anchor: int,
    count: int,
    sampling: DraftSampling | None = None,
    output_position: int = 0,
) -> DraftRequest:
    """A request whose text is `length` tokens that do not matter and the anchor."""
    return DraftRequest(state, [0] * length + [anchor], count, output_position, sampling or DraftSampling())


def extend(drafter: Drafter, state: Any, features: torch.Tensor | None, start: int) -> None:
    """`Drafter.extend` for one sequence."""
    drafter.extend([ContextUpdate(state, features, start)])
