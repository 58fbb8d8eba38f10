"""Engines that break a promise on purpose, to see whether an audit notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from draftproof.engine import step, verification
from draftproof.engine.candidates import Work
from draftproof.engine.verification import Verdict
from draftproof.models.rows import Segment, TargetOutput
from draftproof.models.target import Target


def accept_a_wrong_draft(patch: pytest.MonkeyPatch, position: int) -> None:
    """Verification that keeps the first draft behind output position `position`, right or wrong."""
    sound = verification.verify

    def verify(works: Sequence[Work], output: TargetOutput) -> list[Verdict]:
        return [
            replace(verdict, accepted=1, bonus=5)
            if work.drafts and verdict.accepted == 0 and work.sequence.output_length >= position
            else verdict
            for work, verdict in zip(works, sound(works, output), strict=True)
        ]

    patch.setattr(step, "verify", verify)


def rows_see_their_company(patch: pytest.MonkeyPatch, size: float) -> None:
    """A target whose logits depend on how many rows share the pass, as rounding would make them, but larger."""
    sound = Target.forward

    def forward(self: Target, segments: Sequence[Segment], taps: Sequence[int] = ()) -> TargetOutput:
        output = sound(self, segments, taps)
        rows = sum(segment.count for segment in segments)
        noise = torch.randn(output.logits.shape[1], generator=torch.Generator().manual_seed(rows))
        return replace(output, logits=output.logits + (size * noise).to(output.logits.dtype))

    patch.setattr(Target, "forward", forward)
