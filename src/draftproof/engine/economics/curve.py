"""Seconds of one kind of pass as a function of its size: measured points, corrected by what steps really take."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FAR = 1 << 20
"""Where the straight continuation past the last measured point ends."""

LEAST_SLOPE = 0.25
"""What a row beyond the last measured size costs at least, as a share of the average row at that size."""

GENERAL_RATE = 0.10
LOCAL_RATE = 0.08
FIRST_RATE = 0.5
"""How far a surprise moves the general factor and its own point; a point's first few move it more."""
CLIP = 0.3
LONGEST_STREAK = 3
"""A step's surprise, as a log ratio, counts at most this much, so that one step that took ten times as long (another
process had the core) moves the estimate by 5%. Each further one of the same sign in a row counts up to twice as much
as the one before: what keeps coming is no accident, and a table that is wrong by 2x heals in about 10 steps."""
LEAK = 0.002
"""What only one size has shown slowly becomes the view of all sizes: a machine that got slower got slower for
the sizes not seen lately too."""


class CostCurve:
    """A piecewise linear, never falling function of the rows of a pass, plus a term per sequence.

    ``seconds(rows, sequences) = curve(rows) + per_sequence * sequences``, times a correction learned online: one
    general factor, and one deviation from it at each measured point, interpolated in between.

    Args:
        rows: sizes measured, rising, >= 1.
        seconds: the curve at these sizes; made never falling here.
        per_sequence: seconds for each sequence of the pass, >= 0.
    """

    def __init__(self, rows: Sequence[float], seconds: Sequence[float], per_sequence: float = 0.0) -> None:
        points = np.asarray(rows, dtype=np.float64)
        # A measurement that is off took too long, so the smaller of two sizes gives way to the larger.
        values = np.maximum(np.asarray(seconds, dtype=np.float64), 1e-9)
        values = np.minimum.accumulate(values[::-1])[::-1]
        if (
            points.ndim != 1
            or points.size == 0
            or points.shape != values.shape
            or (np.diff(points) <= 0).any()
        ):
            raise ValueError("a cost curve needs as many seconds as rising sizes, and at least one")
        if not (np.isfinite(points).all() and np.isfinite(values).all() and np.isfinite(per_sequence)):
            raise ValueError("a cost curve needs finite numbers")
        self.rows, self.seconds = points, values
        self.per_sequence = max(0.0, float(per_sequence))
        self.general = 0.0
        self.local = [0.0] * len(points)
        self.visits = [0.0] * len(points)
        self._streaks = [0.0] * len(points)
        self._measured: list[float] = values.tolist()
        self._sizes: list[float] = [*points.tolist(), float(max(FAR, 2 * points[-1]))]
        self._knots = np.array(self._sizes)
        self._stale = True
        self._now = np.empty(0)
        self._table = np.empty((2, 0))
        self._heights: list[float] = []
        self._scale = 1.0

    def at(self, rows: Any, sequences: Any = 0.0) -> Any:
        """Seconds for passes of these sizes, two arrays of one shape; 0 where `rows` is 0."""
        if self._stale:
            self._refresh()
        cost = np.interp(rows, self._knots, self._now)
        if self.per_sequence:
            cost = cost + self._scale * self.per_sequence * np.asarray(sequences)
        return np.where(np.asarray(rows) > 0, cost, 0.0)

    @property
    def table(self) -> np.ndarray:
        """The curve as `compiled` takes it, float64 ``[2, points + 1]``: sizes; seconds; last, seconds a sequence."""
        if self._stale:
            self._refresh()
        return self._table

    def one(self, rows: float, sequences: float = 0.0) -> float:
        """The same for one pass."""
        if rows <= 0:
            return 0.0
        if self._stale:
            self._refresh()
        cost = self._scale * self.per_sequence * sequences
        for point, weight in self._neighbours(rows):
            cost += weight * self._heights[point]
        return cost

    def observe(self, rows: float, sequences: float, seconds: float, extra: float = 0.0) -> float:
        """Learn from a pass that took `seconds`, of which `extra` are explained elsewhere (long contexts).

        Returns:
            By what factor it took longer than expected, as a logarithm.
        """
        if rows <= 0 or not seconds > 0:
            return 0.0
        ratio = math.log(seconds / (self.one(rows, sequences) + extra))
        neighbours = self._neighbours(rows)
        last = len(self.local) - 1
        surprise = self._clipped(min(last, max(neighbours, key=lambda pair: pair[1])[0]), ratio)
        self.general += GENERAL_RATE * surprise
        for neighbour, weight in neighbours:
            point = min(last, neighbour)
            self.visits[point] += weight
            rate = max(LOCAL_RATE, FIRST_RATE / (1.0 + self.visits[point]))
            self.local[point] = (self.local[point] + rate * weight * surprise) * (1.0 - LEAK * weight)
        self._stale = True
        return ratio

    def _clipped(self, point: int, ratio: float) -> float:
        """The surprise as far as it counts, and the point's streak of large ones brought up to date."""
        if abs(ratio) <= CLIP:
            self._streaks[point] = 0.0
            return ratio
        before = self._streaks[point]
        length = min(LONGEST_STREAK, abs(before)) + 1 if before * ratio > 0 else 1
        streak = math.copysign(length, ratio)
        self._streaks[point] = streak
        most = CLIP * 2.0 ** (abs(streak) - 1)
        return min(most, max(-most, ratio))

    def _neighbours(self, rows: float) -> list[tuple[int, float]]:
        """The measured points on either side of a size, with the weights of a straight line between them."""
        above = bisect_left(self._sizes, rows)
        if above == 0 or self._sizes[above] == rows:
            return [(above, 1.0)]
        low, high = self._sizes[above - 1], self._sizes[above]
        share = (rows - low) / (high - low)
        return [(above - 1, 1.0 - share), (above, share)]

    def _refresh(self) -> None:
        """Corrected heights at the measured points and at the far one; in plain Python, which is quicker for so few."""
        heights: list[float] = []
        highest = 0.0
        for seconds, local in zip(self._measured, self.local, strict=True):
            highest = max(highest, seconds * math.exp(self.general + local))
            heights.append(highest)
        last = len(heights) - 1
        if last:
            # Beyond the end: the slope of the second half, so that noise in the last point is not blown up.
            middle = (last - 1) // 2
            slope = (highest - heights[middle]) / (self._sizes[last] - self._sizes[middle])
            # A machine too slow or too busy to measure more than a few sizes has not shown that rows are free.
            slope = max(slope, LEAST_SLOPE * highest / self._sizes[last])
        else:
            slope = highest / self._sizes[0]
        heights.append(highest + slope * (self._sizes[-1] - self._sizes[last]))
        self._heights = heights
        self._scale = math.exp(self.general)
        self._table = np.array([[*self._sizes, 0.0], [*heights, self._scale * self.per_sequence]])
        self._now = self._table[1, :-1]
        self._stale = False

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows.tolist(),
            "seconds": self.seconds.tolist(),
            "per_sequence": self.per_sequence,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CostCurve:
        return CostCurve(data["rows"], data["seconds"], data["per_sequence"])
