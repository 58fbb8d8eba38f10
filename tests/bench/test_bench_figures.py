"""Figures from made-up arrivals, where every number is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.bench.cell import CellKey, CellRun, Round
from draftproof.bench.figures import summarised
from draftproof.bench.passes import Arrival, Pass
from draftproof.bench.spread import Percentiles, Spread
from draftproof.bench.work import Work, total, work_between
from draftproof.engine import Metrics

NUMBERS = st.floats(min_value=0.01, max_value=1e3)


@given(st.lists(NUMBERS, min_size=1, max_size=30))
@settings(derandomize=True, max_examples=100, deadline=None)
def test_the_interval_covers_what_it_says(values: list[float]) -> None:
    """Coverage counted over all ways in which n values can fall on the two sides of the true median."""
    spread = Spread.of(values)
    assert spread is not None
    ordered, n = sorted(values), len(values)
    assert spread.median == median(values)
    assert spread.low in ordered
    assert spread.high in ordered
    left_out = next(
        cut
        for cut in reversed(range(n))
        if cut < n / 2 and spread.low >= ordered[cut] and spread.high <= ordered[n - 1 - cut]
    )
    # It misses when more than n - 1 - cut values lie on one side.
    covered = sum(math.comb(n, below) for below in range(left_out + 1, n - left_out)) / 2**n
    if len(set(values)) == n:
        assert spread.coverage == pytest.approx(covered)
        narrower = sum(math.comb(n, below) for below in range(left_out + 2, n - 1 - left_out)) / 2**n
        assert narrower < 0.95
    assert spread.coverage >= 0.95 or n < 6


@pytest.mark.parametrize(
    ("count", "rank"), [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6)]
)
def test_known_ranks_of_the_sign_test(count: int, rank: int) -> None:
    spread = Spread.of([float(value) for value in range(1, count + 1)])
    assert spread is not None
    assert (spread.low, spread.high) == (rank, count + 1 - rank)


def test_percentiles_are_values_that_came() -> None:
    values = [float(value) for value in range(1, 101)]
    assert Percentiles.of(values) == Percentiles(50, 90, 99)
    assert Percentiles.of([7.0]) == Percentiles(7, 7, 7)
    assert Percentiles.of([2.0, 1.0]) == Percentiles(1, 2, 2)
    assert Percentiles.of([]) is None
    assert Spread.of([]) is None


def made_up(
    arrivals: Sequence[Sequence[tuple[float, int]]], work: Work | None = None, cached: int = 0
) -> Pass:
    listed = [[Arrival(seconds, tokens) for seconds, tokens in mine] for mine in arrivals]
    return Pass(
        prompt_tokens=[10] * len(listed),
        cached_tokens=[cached] * len(listed),
        outputs=[list(range(sum(one.tokens for one in mine))) for mine in listed],
        arrivals=listed,
        seconds=max(mine[-1].seconds for mine in listed),
        work=work or Work(),
    )


def test_a_pass_reads_latencies_off_its_arrivals() -> None:
    one = made_up([[(0.5, 1), (0.7, 4), (1.5, 3)], [(1.0, 1), (1.2, 1), (2.0, 2)]])
    assert one.first_token_seconds == [0.5, 1.0]
    assert one.prompt_tokens_per_second == pytest.approx(20 / 1.0)
    assert one.gaps == pytest.approx([0.2, 0.8, 0.2, 0.8])
    assert one.seconds_per_token == pytest.approx([1.0 / 7, 1.0 / 3])
    # After everybody's first token (1.0 s) came 3 + 1 + 2 tokens, the last one second later.
    assert one.tokens_per_second == pytest.approx(6.0)


def test_cached_prompt_tokens_are_no_speed() -> None:
    assert made_up([[(0.5, 1), (1.0, 1)]], cached=6).prompt_tokens_per_second == pytest.approx(8.0)


def test_one_token_is_no_decoding() -> None:
    one = made_up([[(0.5, 1)]])
    assert one.tokens_per_second is None
    assert one.gaps == []
    assert one.seconds_per_token == []


COUNTS = st.lists(st.integers(0, 50), max_size=6)
WORKS = st.builds(
    Work,
    decode_steps=st.integers(0, 99),
    accepted_tokens=st.integers(0, 99),
    drafted_by_position=COUNTS,
    accepted_by_position=COUNTS,
    draft_lengths=COUNTS,
    target_seconds=st.integers(0, 9).map(float),
)


@given(st.lists(WORKS, max_size=4))
@settings(derandomize=True, max_examples=50, deadline=None)
def test_work_adds_up(works: list[Work]) -> None:
    whole = total(works)
    assert whole.decode_steps == sum(work.decode_steps for work in works)
    assert whole.target_seconds == sum(work.target_seconds for work in works)
    expected = [
        sum(column) for column in itertools.zip_longest(*(work.draft_lengths for work in works), fillvalue=0)
    ]
    assert whole.draft_lengths == expected


def test_work_between_two_looks() -> None:
    before = Metrics(decode_steps=3, accepted_tokens=2, draft_lengths=[1, 2], verify_seconds=1.0)
    now = Metrics(decode_steps=7, accepted_tokens=8, draft_lengths=[2, 2, 3], verify_seconds=1.5)
    work = work_between(before, now)
    assert (work.decode_steps, work.accepted_tokens, work.draft_lengths) == (4, 6, [1, 0, 3])
    assert work.verify_seconds == pytest.approx(0.5)
    assert work.acceptance_length == pytest.approx(2.5)
    assert Work().acceptance_length is None


def rounds_of(seconds: Sequence[float], work: Work, step: int = 1) -> list[Round]:
    """Outputs of seven tokens, the last `step` of them together."""
    passes = [made_up([[(0.0, 1), (last / 2, 6 - step), (last, step)]], work) for last in seconds]
    return [Round(made_up([[(0.25, 1)]]), one, 100.0 + place) for place, one in enumerate(passes)]


def test_a_cell_compares_modes_round_by_round() -> None:
    work = Work(
        decode_steps=10,
        accepted_tokens=15,
        drafted_by_position=[8, 4],
        accepted_by_position=[6, 1],
        draft_lengths=[2, 0, 8],
        target_seconds=0.6,
        verify_seconds=0.03,
    )
    run = CellRun(CellKey("code", 1, 0.0))
    run.rounds = {"off": rounds_of([2.0, 4.0, 1.0], Work()), "auto": rounds_of([1.0, 1.0, 1.0], work, 3)}
    run.complete = True
    cell = summarised(run)
    assert (cell.group, cell.batch, cell.temperature, cell.rounds, cell.complete) == ("code", 1, 0.0, 3, True)
    off, auto = cell.modes
    assert off.speed_over_off is None
    assert off.same_tokens is None
    assert auto.speed_over_off is not None
    assert (auto.speed_over_off.median, auto.speed_over_off.low, auto.speed_over_off.high) == pytest.approx(
        (2, 1, 4)
    )
    assert auto.tokens_per_second_by_round == pytest.approx([6.0] * 3)
    assert auto.acceptance_length == pytest.approx(2.5)
    assert auto.kept_by_position == pytest.approx([0.75, 0.25])
    assert auto.mean_draft_length == pytest.approx(1.6)
    assert auto.shares is not None
    assert (auto.shares.target, auto.shares.verify, auto.shares.other) == pytest.approx((0.6, 0.03, 0.37))
    assert auto.peak_mib == 102.0
    assert auto.first_token_ms == Percentiles(250, 250, 250)
    assert auto.same_tokens is True
    assert auto.output_tokens == 21


def test_what_was_interrupted_counts_only_whole_rounds() -> None:
    run = CellRun(CellKey("code", 1, 0.0))
    run.rounds = {"off": rounds_of([2.0, 3.0], Work()), "auto": rounds_of([1.0], Work())}
    cell = summarised(run)
    assert (cell.rounds, cell.complete) == (1, False)
    assert [len(mode.tokens_per_second_by_round) for mode in cell.modes] == [1, 1]


def test_other_tokens_are_noticed() -> None:
    run = CellRun(CellKey("code", 1, 0.0))
    run.rounds = {"off": rounds_of([2.0], Work()), "auto": rounds_of([1.0], Work())}
    run.rounds["auto"][0].decoding.outputs[0][3] = 99
    assert summarised(run).modes[1].same_tokens is False
