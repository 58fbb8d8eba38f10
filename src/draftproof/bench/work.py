"""What an engine did between two looks at its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from draftproof.engine import Metrics


@dataclass(frozen=True)
class Work:
    """Counts and seconds of some steps; see `Metrics` for the fields.

    `drafted_by_position[i]` and `accepted_by_position[i]` are draft tokens verified and kept at place i of their block;
    `draft_lengths[k]` steps of a sequence with k draft tokens.
    """

    decode_steps: int = 0
    accepted_tokens: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    draft_lengths: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens committed per step of a sequence, bonus included; None before any step."""
        return 1 + self.accepted_tokens / self.decode_steps if self.decode_steps else None


def work_between(before: Metrics, now: Metrics) -> Work:
    """What came after `before`."""
    return _combined(before, now, -1)


def total(parts: Sequence[Work]) -> Work:
    """All of them together."""
    everything = Work()
    for part in parts:
        everything = _combined(everything, part, 1)
    return everything


def _combined(first: Work | Metrics, second: Work | Metrics, sign: int) -> Work:
    """``second + sign * first``, field by field."""

    def counts(ours: list[int], theirs: list[int]) -> list[int]:
        return [late + sign * early for early, late in zip_longest(ours, theirs, fillvalue=0)]

    return Work(
        decode_steps=second.decode_steps + sign * first.decode_steps,
        accepted_tokens=second.accepted_tokens + sign * first.accepted_tokens,
        drafted_by_position=counts(first.drafted_by_position, second.drafted_by_position),
        accepted_by_position=counts(first.accepted_by_position, second.accepted_by_position),
        draft_lengths=counts(first.draft_lengths, second.draft_lengths),
        draft_seconds=second.draft_seconds + sign * first.draft_seconds,
        target_seconds=second.target_seconds + sign * first.target_seconds,
        verify_seconds=second.verify_seconds + sign * first.verify_seconds,
        commit_seconds=second.commit_seconds + sign * first.commit_seconds,
    )
