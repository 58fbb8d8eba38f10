"""The interval of a median covers what it says."""

from __future__ import annotations

import random

import pytest

from draftproof.audit.interval import median_interval


def test_known_ranks() -> None:
    # Tables of the sign test: n = 15 takes the 4th and the 12th value, 96.5%; n = 6 the extremes, 96.9%.
    fifteen = median_interval([float(value) for value in range(1, 16)])
    assert (fifteen.low, fifteen.median, fifteen.high) == (4.0, 8.0, 12.0)
    assert fifteen.coverage == pytest.approx(0.96484, abs=1e-5)
    six = median_interval([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert (six.low, six.median, six.high) == (1.0, 3.5, 6.0)
    assert six.coverage == pytest.approx(0.96875)


@pytest.mark.parametrize(("count", "coverage"), [(1, 0.0), (2, 0.5), (5, 0.9375)])
def test_too_few_values_give_the_extremes_and_say_so(count: int, coverage: float) -> None:
    interval = median_interval([float(value) for value in range(count)])
    assert (interval.low, interval.high) == (0.0, float(count - 1))
    assert interval.coverage == pytest.approx(coverage)


@pytest.mark.parametrize("count", [6, 15, 16, 31])
def test_it_covers_the_true_median_as_often_as_it_says(count: int) -> None:
    """Skewed values; 4,000 trials with a fixed seed; off by more than 4 standard errors once in 15,000 such tests."""
    source = random.Random(count)
    trials = 4000
    held = 0
    for _ in range(trials):
        interval = median_interval([source.lognormvariate(0.0, 1.0) for _ in range(count)])
        held += interval.low <= 1.0 <= interval.high
    expected = median_interval([float(value) for value in range(count)]).coverage
    assert expected >= 0.95
    assert abs(held / trials - expected) < 4 * (expected * (1 - expected) / trials) ** 0.5


def test_an_outlier_does_not_move_it() -> None:
    values = [1.0 + index / 1000 for index in range(15)]
    assert median_interval([*values[:-1], 50.0]) == median_interval(values)


def test_nothing_has_no_median() -> None:
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])
