"""Medians with their intervals, and percentiles: nothing here assumes a distribution, so a few slow runs spoil nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median


@dataclass(frozen=True)
class Spread:
    """A median and where the true one lies.

    Attributes:
        median: of the values.
        low, high: ends of the interval, both values that were measured.
        coverage: the probability that the interval holds the true median; 0.95 or more from six values on.
    """

    median: float
    low: float
    high: float
    coverage: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        """None of nothing.

        As many values are left out at each end as keep 95%: leaving out c of n at each end misses the true median with
        probability ``2 * P(Binomial(n, 1/2) <= c)`` (the sign test; Conover, "Practical Nonparametric Statistics", 3.4). With
        fewer than six values nothing is left out, and `coverage` says what that is worth.
        """
        if not values:
            return None
        ordered, count = sorted(values), len(values)
        misses = [2 * tail / 2**count for tail in accumulate(math.comb(count, k) for k in range(count))]
        left_out = max(0, sum(miss <= 0.05 for miss in misses) - 1)
        return Spread(
            median(ordered),
            ordered[left_out],
            ordered[count - 1 - left_out],
            max(0.0, 1.0 - misses[left_out]),
        )


@dataclass(frozen=True)
class Percentiles:
    """Values that 50, 90 and 99 in 100 do not exceed (nearest rank)."""

    p50: float
    p90: float
    p99: float

    @staticmethod
    def of(values: Sequence[float]) -> Percentiles | None:
        """None of nothing."""
        if not values:
            return None
        ordered = sorted(values)
        return Percentiles(*(ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.9, 0.99)))
