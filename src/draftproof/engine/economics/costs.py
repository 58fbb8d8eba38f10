"""What a step costs on this machine, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.engine.economics.curve import CostCurve

FORMAT = 1
RECENT = 16
"""A backlog up to this is no backlog: what the last step committed is always still to be taken in."""
COLD_RATE = 0.2
"""How far one step moves `CostTable.cold_s`."""
BACKLOG_STEPS = 32
"""Steps over which the cost of a backlog is spread."""


@dataclass(frozen=True)
class StepCost:
    """What one step took. A kind that did not run has 0 seconds and teaches nothing.

    Attributes:
        rows: rows of the target's pass, prefill rows included.
        sequences: sequences in the target's pass.
        drafting_sequences: sequences in the drafter's pass.
        draft_slots: draft tokens asked of the drafter, all sequences together.
        draft_s: seconds of the drafter's pass.
        target_s: seconds of the target's pass and of all that comes with a row: verification, commit.
        extend_tokens: tokens taken into the drafter's context.
        extend_s: seconds of that.
        other_rows: how many of `rows` are prefill. These cost less than verify rows (no logits), so a step with
            any teaches nothing about the target.
        context: sum over the rows of the tokens each attends to; 0 when unknown.
    """

    rows: int
    sequences: int
    drafting_sequences: int
    draft_slots: int
    draft_s: float
    target_s: float
    extend_tokens: int
    extend_s: float
    other_rows: int = 0
    context: int = 0


@dataclass
class CostTable:
    """Seconds of the target's pass, of the drafter's pass and of its context upkeep.

    Attributes:
        target: by rows and sequences, measured with `measured_context` tokens before each row.
        drafter: by draft slots and sequences.
        extend: by tokens taken into the drafter's context.
        per_context: seconds more for each row and each context token beyond `measured_context`.
        measured_context: tokens of context under which `target` was measured.
        cold_s: seconds more that a step takes which drafts after some that did not: the drafter's weights and code are in no
            cache. Learned from such steps, which teach the curves nothing.
    """

    target: CostCurve
    drafter: CostCurve
    extend: CostCurve
    per_context: float = 0.0
    measured_context: int = 0
    cold_s: float = 0.0

    def observe_cold_step(self, step: StepCost) -> None:
        """Learn from the first step that drafts after some that did not."""
        if step.other_rows:
            return
        expected = (
            self.target.one(step.rows, step.sequences)
            + self.drafter.one(step.draft_slots, step.drafting_sequences)
            + self.extend.one(step.extend_tokens)
        )
        more = step.target_s + step.draft_s + step.extend_s - expected
        self.cold_s += COLD_RATE * (min(max(more, 0.0), expected) - self.cold_s)

    def observe_step(self, step: StepCost) -> float:
        """Correct the table by what a step really took.

        Returns:
            By what factor the target's pass took longer than expected, as a logarithm; 0 when it taught nothing.
        """
        ratio = 0.0
        if not step.other_rows:
            longer = step.context - step.rows * self.measured_context if step.context else 0
            ratio = self.target.observe(
                step.rows, step.sequences, step.target_s, self.per_context * max(0, longer)
            )
        self.drafter.observe(step.draft_slots, step.drafting_sequences, step.draft_s)
        self.extend.observe(step.extend_tokens, 0, step.extend_s)
        return ratio

    def upkeep(
        self, backlog: np.ndarray, members: np.ndarray, first: np.ndarray, tokens: np.ndarray
    ) -> np.ndarray:
        """Seconds a step of drafting owes to the drafter's context, for each number of drafts 1, 2, ...

        Every committed token of a drafting sequence must be taken in. A backlog is paid once and serves the
        drafts of many steps, so a step bears a part of it.

        Args:
            backlog: tokens not yet taken in, by sequence.
            members: sequence of each draft, in the order in which they are added.
            first: whether it is its sequence's first.
            tokens: expected tokens of the step, all sequences, with so many drafts.
        """
        drafting = np.cumsum(first)
        share = tokens * (drafting / len(backlog))
        behind = np.cumsum(np.where(first, np.maximum(0.0, backlog[members] - RECENT), 0.0))
        cost: np.ndarray = self.extend.at(share) + self.extend.at(behind) / BACKLOG_STEPS
        return cost

    def to_json(self) -> dict[str, Any]:
        """The measured part; corrections belong to the run that made them."""
        return {
            "format": FORMAT,
            "target": self.target.to_json(),
            "drafter": self.drafter.to_json(),
            "extend": self.extend.to_json(),
            "per_context": self.per_context,
            "measured_context": self.measured_context,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CostTable:
        """Raises `KeyError`, `TypeError` or `ValueError` when the data is not a table of this format."""
        if data["format"] != FORMAT:
            raise ValueError(f"cost table of format {data['format']}, expected {FORMAT}")
        return CostTable(
            CostCurve.from_json(data["target"]),
            CostCurve.from_json(data["drafter"]),
            CostCurve.from_json(data["extend"]),
            float(data["per_context"]),
            int(data["measured_context"]),
        )
