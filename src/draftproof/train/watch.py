"""What a run tells while it goes on."""

from __future__ import annotations

from draftproof.train.bars import StageProgress
from draftproof.train.estimate import Estimate
from draftproof.train.evaluate import Evaluation
from draftproof.train.record import StepRecord


class Watch:
    """Listens to a run, and does nothing about it. A screen overrides what it shows."""

    def say(self, text: str) -> None:
        """Something worth a line."""

    def estimate(self, estimate: Estimate) -> None:
        """What the run will cost, before it starts."""

    def stage(self, progress: StageProgress) -> None:
        """How far a stage is."""

    def step(self, record: StepRecord, done: float) -> None:
        """An optimizer step, and the share of the run that is done."""

    def evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """An evaluation, and whether it is the best so far."""
