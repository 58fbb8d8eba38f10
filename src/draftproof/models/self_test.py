"""The test that decides whether a target may be called lossless on this machine: do rows stand for themselves?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from draftproof.errors import ModelError
from draftproof.models.kv import SequenceKV, TargetPages
from draftproof.models.rows import Segment, TargetOutput


class TestedTarget(Protocol):
    """What the test needs of a target."""

    name: str
    dtype: torch.dtype
    device: torch.device

    def new_pages(self, num_pages: int) -> TargetPages: ...
    def new_sequence(self) -> SequenceKV: ...
    def forward(self, segments: Sequence[Segment], taps: Sequence[int] = ()) -> TargetOutput: ...


@torch.inference_mode()
def rows_stand_alone(target: TestedTarget, vocab_size: int, model_type: str) -> bool:
    """Whether rows come out bit-identical alone, chunked and in company, on this machine, in this precision.

    Runs 80 tokens as one pass in pages of their own; then in odd pieces between two other sequences, in scattered pages
    of a pool that is full of NaN wherever nothing has been written.

    Raises:
        ModelError: DP263, the rows differ by more than rounding.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (80,), generator=generator).to(target.device)
    whole = target.forward([Segment(target.new_sequence(), tokens, 0)]).logits
    pool = target.new_pages(6)
    pool.fill(torch.nan)
    before, mine, behind = (SequenceKV(pool, table) for table in ([3], [5, 1], [0]))
    pieces = []
    for length in (1, 5, 1, 10, 1, 16, 3, 35, 8):
        segments = [Segment(mine, tokens[mine.length : mine.length + length], 0)]
        if length != 1:
            others = [tokens[length : length + 3], tokens[:length:4]]
            segments = [
                Segment(before, others[0], 3),
                *segments,
                Segment(behind, others[1], len(others[1])),
            ]
        pieces.append(target.forward(segments).logits)
        for segment in segments:
            segment.kv.commit_to(segment.kv.written)
    cut = torch.cat(pieces)
    _refuse_more_than_rounding(target, model_type, whole.float(), cut.float())
    return torch.equal(whole, cut)


def _refuse_more_than_rounding(
    target: TestedTarget, model_type: str, whole: torch.Tensor, cut: torch.Tensor
) -> None:
    scale = float(whole.abs().max())
    allowed = (0.25 if target.dtype == torch.bfloat16 else 0.01) * scale
    difference = float((whole - cut).abs().max())
    if not difference <= allowed:
        raise ModelError(
            "DP263",
            f"{target.name}: logits differ by {difference:.3g} (of {scale:.3g}) when the same tokens come in one pass or in "
            f"several; the {model_type} code keeps something between tokens that draftproof does not know of",
        )
