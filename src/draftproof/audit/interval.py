"""An interval for a median, from order statistics: exact for any distribution, so a few slow outliers cannot spoil it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median


@dataclass(frozen=True)
class MedianInterval:
    """A median and where the true one lies.

    Attributes:
        median: of the sample.
        low, high: the interval's ends; both are values of the sample.
        coverage: probability that such an interval holds the true median, at least 0.95 from 6 values on.
    """

    median: float
    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float], confidence: float = 0.95) -> MedianInterval:
    """The narrowest symmetric pair of order statistics that covers the median with at least `confidence`.

    How many of n independent values lie under the true median is binomial (n, 1/2), so the k-th smallest and k-th largest
    enclose it with probability ``1 - 2 * P(Binomial(n, 1/2) < k)`` (David and Nagaraja, "Order Statistics", section 7.1).
    With fewer than 6 values no pair reaches 95%: the extremes are given, with what they do cover.

    Args:
        values: at least one.
        confidence: in ``(0, 1)``.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    ordered, count = sorted(values), len(values)
    chosen, coverage = 1, _coverage(count, 1)
    for rank in range(2, count // 2 + 1):
        if _coverage(count, rank) < confidence:
            break
        chosen, coverage = rank, _coverage(count, rank)
    return MedianInterval(median(ordered), ordered[chosen - 1], ordered[count - chosen], coverage)


def _coverage(count: int, rank: int) -> float:
    outside = sum(comb(count, below) for below in range(rank))
    return max(0.0, 1.0 - 2.0 * outside / 2**count)
