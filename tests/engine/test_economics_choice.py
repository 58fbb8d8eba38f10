"""The joint choice of draft lengths against trying all of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from economics_machine import drafter_curve, target_curve, true_costs
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.engine.economics import CostCurve, CostTable
from draftproof.engine.economics.choice import (
    MARGIN,
    MARGIN_TO_STAY,
    MARGIN_TOGETHER,
    StepShape,
    best_lengths,
)

FREE = CostCurve([1], [1e-9])


def shape(
    n: int,
    other_rows: int = 0,
    contexts: list[float] | None = None,
    backlog: float = 1.0,
    refilled: bool = True,
) -> StepShape:
    return StepShape(n, other_rows, np.array(contexts or [0.0] * n), np.full(n, backlog), refilled)


def chains(chances: list[list[float]]) -> np.ndarray:
    return np.cumprod(np.array(chances), axis=1)


def rate_of(
    survival: np.ndarray,
    lengths: tuple[int, ...],
    costs: CostTable,
    drafted: int | None = None,
    refilled: bool = True,
) -> float:
    """Tokens per second of a step without upkeep, by adding up; by their harmonic mean where nobody waits."""
    n = len(lengths)
    each = [1.0 + survival[i, :k].sum() for i, k in enumerate(lengths)]
    tokens = sum(each) if refilled else n * n / sum(1.0 / one for one in each)
    slots = sum(lengths) if drafted is None else drafted
    return float(tokens / (costs.target.one(n + sum(lengths), n) + costs.drafter.one(slots, 0)))


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4), min_size=n, max_size=n)
    ),
    st.floats(0.1, 5.0),
    st.booleans(),
)
def test_no_other_lengths_give_a_better_rate(
    chances: list[list[float]], scale: float, refilled: bool
) -> None:
    survival = chains(chances)
    costs = CostTable(target_curve(), drafter_curve(scale), FREE)
    n = len(chances)
    choice = best_lengths(survival, shape(n, refilled=refilled), costs)
    best = max(
        rate_of(survival, lengths, costs, refilled=refilled)
        for lengths in itertools.product(range(5), repeat=n)
    )
    mine = rate_of(survival, tuple(choice.lengths.tolist()), costs, refilled=refilled)
    assert choice.rate == pytest.approx(mine, rel=1e-6)
    margin = MARGIN if refilled or n == 1 else MARGIN_TOGETHER
    assert mine >= best / (1 + margin) * (1 - 1e-3)
    if choice.lengths.any():
        assert mine >= best * (1 - 1e-3)


def test_where_nobody_waits_no_sequence_runs_ahead_at_the_cost_of_the_others() -> None:
    """One likely draft among four sequences: more tokens a second, but three of four would take longer for theirs."""
    survival = chains([[0.95] * 7, [0.05] * 7, [0.05] * 7, [0.05] * 7])
    costs = CostTable(target_curve(), CostCurve([1, 224], [0.006, 0.035]), FREE)
    assert best_lengths(survival, shape(4, refilled=True), costs).lengths[0] > 3
    assert best_lengths(survival, shape(4, refilled=False), costs).lengths.tolist() == [0, 0, 0, 0]


def test_after_the_drafter_has_run_its_cost_is_paid_whatever_is_verified() -> None:
    """A chance of 0.15 does not pay for a drafter pass, but does for a row."""
    survival = chains([[0.15]])
    assert best_lengths(survival, shape(1), true_costs()).lengths.tolist() == [0]
    assert best_lengths(survival, shape(1), true_costs(), drafted=np.array([1])).lengths.tolist() == [1]


def test_one_drafter_pass_is_shared() -> None:
    """Alone, a sequence of chance 0.2 does not pay for the pass; beside one that drafts anyway it does."""
    costs = CostTable(target_curve(), CostCurve([1, 100], [0.004, 0.0041]), FREE)
    assert best_lengths(chains([[0.18]]), shape(1), costs).lengths.tolist() == [0]
    assert best_lengths(chains([[0.9], [0.18]]), shape(2), costs).lengths.tolist() == [1, 1]


def test_the_likelier_sequence_drafts_further() -> None:
    lengths = best_lengths(chains([[0.5] * 7, [0.95] * 7, [0.1] * 7]), shape(3), true_costs()).lengths
    assert lengths[1] == 7
    assert 0 < lengths[0] < 4
    assert lengths[2] == 0


def test_drafts_get_shorter_as_rows_get_dearer() -> None:
    """The same chances at growing batch sizes."""
    total = [
        int(best_lengths(chains([[0.8] * 7] * n), shape(n), true_costs()).lengths.max())
        for n in (1, 2, 4, 8, 32)
    ]
    assert total == sorted(total, reverse=True)
    assert total[0] == 7
    assert total[-1] == 0


def test_prefill_rows_do_not_make_drafts_look_cheap() -> None:
    """Beside 512 rows of prefill any step is slow; what a token is worth stays the same."""
    survival = chains([[0.3] * 7] * 16)
    alone = best_lengths(survival, shape(16), true_costs())
    beside = best_lengths(survival, shape(16, other_rows=512), true_costs())
    assert alone.lengths.sum() == 0
    assert beside.lengths.sum() == 0
    assert beside.rate == alone.rate
    # Where drafts pay alone, they pay beside prefill as far as a row is worth its price there.
    assert best_lengths(chains([[0.9] * 7]), shape(1, other_rows=64), true_costs()).lengths.sum() >= 5


def test_a_row_of_a_long_context_is_dearer() -> None:
    costs = true_costs()
    costs.per_context = 2e-6
    survival = chains([[0.75] * 7])
    short = best_lengths(survival, shape(1, contexts=[100.0]), costs).lengths[0]
    long = best_lengths(survival, shape(1, contexts=[4000.0]), costs).lengths[0]
    assert long < short


def test_a_large_backlog_of_context_weighs_against_drafting() -> None:
    survival = chains([[0.22] * 7])
    assert best_lengths(survival, shape(1), true_costs()).lengths[0] > 0
    assert best_lengths(survival, shape(1, backlog=4000.0), true_costs()).lengths[0] == 0


def test_rows_that_will_be_trimmed_are_not_paid_for() -> None:
    survival = chains([[0.8] * 7] * 4)
    whole = best_lengths(survival, shape(4), true_costs()).lengths.sum()
    trimmed = best_lengths(survival, shape(4), true_costs(), row_weight=survival).lengths.sum()
    assert trimmed > whole


def test_no_room_is_no_draft() -> None:
    assert best_lengths(np.zeros((3, 7)), shape(3), true_costs()).lengths.tolist() == [0, 0, 0]


def test_one_sequence_that_is_drafted_goes_on_at_a_small_loss() -> None:
    """Not so one that is not drafted, nor several, nor at a larger loss."""
    costs = CostTable(target_curve(), drafter_curve(), FREE)
    even = float(costs.target.one(2, 1) + costs.drafter.one(1, 1)) / float(costs.target.one(1, 1)) - 1.0

    def drafts(chance: float, n: int, warm: bool) -> int:
        step = replace(shape(n), warm=warm)
        return int(best_lengths(chains([[chance]] * n), step, costs).lengths[0])

    small_loss = even + 0.7 * MARGIN_TO_STAY * (1.0 + even)
    assert MARGIN_TO_STAY < 0 < MARGIN
    assert drafts(small_loss, 1, warm=True) == 1
    assert drafts(small_loss, 1, warm=False) == 0
    assert drafts(even + 1.3 * MARGIN_TO_STAY * (1.0 + even), 1, warm=True) == 0
    assert drafts(even + 0.5 * MARGIN * (1.0 + even), 1, warm=False) == 0
    assert drafts(even + 1.5 * MARGIN * (1.0 + even), 1, warm=False) == 1
