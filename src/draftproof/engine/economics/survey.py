"""Now and then a step of another size, so that the cost table is checked where habit never goes.

If every step drafts, nothing shows what a step without drafts costs by now, and the other way round: a table that was
measured in a bad moment would justify itself for ever. Sequences that do not draft are looked after by `probes.py`;
this is for those that do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST = 64
SHORTEST = 16
LONGEST = 1024
"""Steps between two surveys of a kind: fewer after a surprise, twice as many after none. A survey costs less than one
step, so no more than 1 in 64 of the time, and 1 in 1,024 once the table is known to hold."""
SURPRISE = 0.15
"""Log ratio of the seconds seen to those expected."""


@dataclass
class _Kind:
    every: int
    since: int = 0

    def learn(self, ratio: float) -> None:
        self.since = 0
        self.every = max(SHORTEST, self.every // 2) if abs(ratio) > SURPRISE else min(LONGEST, 2 * self.every)


class Survey:
    """Counts steps, and changes the draft lengths of a few."""

    def __init__(self) -> None:
        self._plain = _Kind(FIRST)
        self._long = _Kind(FIRST + FIRST // 2)
        self._under_way: _Kind | None = None

    def count(self) -> None:
        """A step that drafts as the last one did, unasked."""
        self._plain.since += 1
        self._long.since += 1

    def step(self, lengths: list[int], room: Sequence[int]) -> list[int]:
        """The lengths to use: those chosen (the same list), or all 0, or all twice as long."""
        self._under_way = None
        if not any(lengths):
            self._plain.since = 0
            return lengths
        self._plain.since += 1
        longer = [min(2 * length, most) for length, most in zip(lengths, room, strict=True)]
        if longer != lengths:
            self._long.since += 1
        if self._plain.since >= self._plain.every:
            self._under_way = self._plain
            return [0] * len(lengths)
        if self._long.since >= self._long.every:
            self._under_way = self._long
            return longer
        return lengths

    def learn(self, ratio: float) -> None:
        """How far the seconds of the target's pass were from the expected, as a log ratio."""
        if self._under_way is not None:
            self._under_way.learn(ratio)
            self._under_way = None
