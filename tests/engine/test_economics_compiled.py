"""What economics computes compiled, against its plain form in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from economics_machine import drafter_curve, extend_curve, target_curve
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.engine.economics import CostCurve, CostTable, DraftOutcome, RequestAcceptance
from draftproof.engine.economics.acceptance import WEIGHTS, EngineAcceptance
from draftproof.engine.economics.calibration import ConfidenceMap
from draftproof.engine.economics.choice import (
    Choice,
    StepShape,
    best_lengths,
    best_lengths_reference,
    plan_lengths,
    plan_lengths_reference,
    survival_of,
    trim_lengths,
)
from draftproof.engine.economics.compiled import _seconds
from draftproof.engine.economics.confidences import FlatConfidence, table_of
from draftproof.engine.economics.outcomes import evidence_of, evidence_reference
from draftproof.engine.economics.probes import losses, losses_reference


def a_curve(luck: np.random.Generator) -> CostCurve:
    """Some curve that has learned something."""
    sizes = np.cumsum(luck.integers(1, 9, luck.integers(1, 6)))
    curve = CostCurve(
        sizes.tolist(), (luck.random(len(sizes)) * 0.01).tolist(), float(luck.random() < 0.5) * 1e-4
    )
    for _ in range(luck.integers(0, 4)):
        curve.observe(float(luck.integers(1, 40)), 2, float(luck.random() * 0.02 + 1e-6))
    return curve


@settings(derandomize=True, max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 20))
def test_a_curve_reads_the_same(seed: int) -> None:
    luck = np.random.default_rng(seed)
    curve = a_curve(luck)
    for rows in [0.0, -1.0, 0.3, *luck.random(20) * 50, 1e7]:
        sequences = float(luck.integers(0, 9))
        expected = pytest.approx(float(curve.at(rows, sequences)), rel=1e-12)
        assert _seconds(curve.table, float(rows), sequences) == expected


@settings(derandomize=True, max_examples=250, deadline=None)
@given(
    n=st.integers(1, 6),
    most=st.integers(1, 8),
    other_rows=st.sampled_from([0, 0, 7, 300]),
    refilled=st.booleans(),
    stage=st.sampled_from(["plan", "plan with weights", "trim"]),
    learned=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_lengths_are_those_of_the_plain_form(
    n: int, most: int, other_rows: int, refilled: bool, stage: str, learned: bool, seed: int
) -> None:
    luck = np.random.default_rng(seed)
    survival = np.cumprod(luck.random((n, most)) ** luck.choice([0.1, 0.5, 3.0]), axis=1)
    survival[np.arange(most) >= luck.integers(0, most + 1, n)[:, None]] = 0.0
    curves = (
        [a_curve(luck) for _ in range(3)] if learned else [target_curve(), drafter_curve(), extend_curve()]
    )
    costs = CostTable(*curves, per_context=float(luck.choice([0.0, 1e-6])), measured_context=100)
    shape = StepShape(n, other_rows, luck.integers(1, 900, n) * 1.0, luck.integers(0, 90, n) * 1.0, refilled)
    weight = 1.0 - luck.random() * (1.0 - survival) if stage == "plan with weights" else None
    drafted = luck.integers(0, most + 1, n) if stage == "trim" else None
    mine = best_lengths(survival, shape, costs, weight, drafted)
    plain = best_lengths_reference(survival, shape, costs, weight, drafted)
    assert mine.rate == pytest.approx(plain.rate, rel=1e-9)
    if mine.lengths.tolist() != plain.lengths.tolist():  # two that promise the same, told apart by rounding
        assert worth(mine, survival, refilled, n) == pytest.approx(
            worth(plain, survival, refilled, n), rel=1e-6
        )
    assert mine.lengths.dtype == plain.lengths.dtype == np.int64


def worth(choice: Choice, survival: np.ndarray, refilled: bool, n: int) -> float:
    each = [1.0 + survival[i, :k].sum() for i, k in enumerate(choice.lengths.tolist())]
    return sum(each) if refilled else n * n / sum(1.0 / one for one in each)


def a_table(luck: np.random.Generator) -> CostTable:
    return CostTable(
        *(a_curve(luck) for _ in range(3)),
        per_context=float(luck.choice([0.0, 1e-6])),
        measured_context=100,
        cold_s=float(luck.random() * 1e-3),
    )


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    n=st.integers(1, 6),
    most=st.integers(1, 8),
    other_rows=st.sampled_from([0, 0, 7]),
    refilled=st.booleans(),
    skill=st.sampled_from([0.0, 0.0, 0.4]),
    seed=st.integers(0, 1 << 20),
)
def test_a_plan_is_that_of_the_plain_form(
    n: int, most: int, other_rows: int, refilled: bool, skill: float, seed: int
) -> None:
    luck = np.random.default_rng(seed)
    engine = EngineAcceptance(most)
    engine.counts = luck.random((2, most)).cumsum(0)[::-1] * 30
    requests = [RequestAcceptance(most) for _ in range(n)]
    for request in requests:
        request.counts = luck.random((2, most)).cumsum(0)[::-1] * luck.choice([0.0, 9.0])
    counts = np.array([request.counts for request in requests])
    allowed = luck.integers(0, most + 1, n) * 1.0
    shape = StepShape(n, other_rows, luck.integers(1, 900, n) * 1.0, luck.integers(0, 90, n) * 1.0, refilled)
    costs = a_table(luck)
    mine, chances = plan_lengths(counts, engine.means, WEIGHTS, allowed, skill, shape, costs)
    np.testing.assert_allclose(chances, engine.of_reference(requests), rtol=1e-12)
    plain = plan_lengths_reference(chances, allowed, skill, shape, costs)
    assert mine.rate == pytest.approx(plain.rate, rel=1e-9)
    if mine.lengths.tolist() != plain.lengths.tolist():
        survival = survival_of(chances, allowed)
        assert worth(mine, survival, refilled, n) == pytest.approx(
            worth(plain, survival, refilled, n), rel=1e-6
        )


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    n=st.integers(1, 5),
    most=st.integers(1, 8),
    other_rows=st.sampled_from([0, 7]),
    refilled=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_drafts_are_cut_as_by_the_plain_form(
    n: int, most: int, other_rows: int, refilled: bool, seed: int
) -> None:
    luck = np.random.default_rng(seed)
    drafted = luck.integers(0, most + 1, n)
    sure = [luck.random(count).tolist() if luck.random() < 0.7 else None for count in drafted.tolist()]
    chances = luck.random((n, most)) * 0.98 + 0.01
    shape = StepShape(n, other_rows, luck.integers(1, 900, n) * 1.0, luck.integers(0, 90, n) * 1.0, refilled)
    costs, confidence = a_table(luck), ConfidenceMap()
    confidence.weights = luck.normal(size=3)
    mine = trim_lengths(
        drafted.tolist(), FlatConfidence.of(sure, most), chances, confidence.weights, shape, costs
    )
    table, known = table_of(sure, most)
    survival = survival_of(np.where(known, confidence.chances(table, chances), chances), drafted)
    plain = best_lengths_reference(survival, shape, costs, drafted=drafted)
    if mine != plain.lengths.tolist():
        promised = worth(Choice(np.array(mine), 0.0), survival, refilled, n)
        assert promised == pytest.approx(worth(plain, survival, refilled, n), rel=1e-6)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(n=st.integers(1, 5), most=st.integers(1, 8), seed=st.integers(0, 1 << 20))
def test_evidence_is_that_of_the_plain_form(n: int, most: int, seed: int) -> None:
    luck = np.random.default_rng(seed)
    seen = []
    for _ in range(n):
        drafted = int(luck.integers(0, most + 1))
        verified = int(luck.integers(0, drafted + 1))
        sure = luck.random(drafted).tolist() if luck.random() < 0.7 else None
        seen.append(
            DraftOutcome(RequestAcceptance(most), sure, verified, int(luck.integers(0, verified + 1)))
        )
    confidence = ConfidenceMap()
    confidence.weights = luck.normal(size=3)
    chances = luck.random((n, most)) * 0.98 + 0.01
    mine, plain = (form(seen, chances, confidence) for form in (evidence_of, evidence_reference))
    np.testing.assert_allclose(mine.tried, plain.tried, rtol=1e-9)
    np.testing.assert_allclose(mine.accepted, plain.accepted, rtol=1e-9)
    np.testing.assert_allclose(mine.told, plain.told, rtol=1e-9, atol=1e-12)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(n=st.integers(1, 12), other_rows=st.sampled_from([0, 7]), seed=st.integers(0, 1 << 20))
def test_losses_are_those_of_the_plain_form(n: int, other_rows: int, seed: int) -> None:
    luck = np.random.default_rng(seed)
    shape = StepShape(n, other_rows, np.ones(n), luck.integers(0, 90, n) * 1.0)
    due = luck.choice(n, luck.integers(1, n + 1), replace=False).tolist()
    lengths = [0 if index in due else int(luck.integers(0, 5)) for index in range(n)]
    room = luck.integers(1, 9, n).tolist()
    chances, token_s = luck.random(n).tolist(), float(luck.random() * 0.01)
    costs = a_table(luck)
    mine, plain = (
        form(due, chances, lengths, room, token_s, shape, costs) for form in (losses, losses_reference)
    )
    np.testing.assert_allclose(mine, plain, rtol=1e-9, atol=1e-15)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(n=st.integers(1, 5), most=st.integers(1, 8), steps=st.integers(1, 12), seed=st.integers(0, 1 << 20))
def test_learning_is_that_of_the_plain_form(n: int, most: int, steps: int, seed: int) -> None:
    luck = np.random.default_rng(seed)
    engine = EngineAcceptance(most)
    mine = [RequestAcceptance(most) for _ in range(n)]
    plain = [RequestAcceptance(most) for _ in range(n)]
    for _ in range(steps):
        some = sorted(luck.choice(n, luck.integers(1, n + 1), replace=False).tolist())
        chosen, twins = [mine[i] for i in some], [plain[i] for i in some]
        for one, twin in zip(chosen, twins, strict=True):
            one.idle = twin.idle = int(luck.integers(0, 30))
        chances = engine.of(chosen)
        np.testing.assert_allclose(chances, engine.of_reference(chosen), rtol=1e-12)
        assert engine.of(list(chosen)) is chances  # asked again before anything was learned
        tried = np.cumprod(luck.random((len(some), most)) < 0.8, axis=1).astype(float)
        accepted = tried * np.cumprod(luck.random((len(some), most)) < luck.choice([0.05, 0.9]), axis=1)
        before = engine.counts.copy()
        engine.observe(chosen, chances, tried, accepted)
        EngineAcceptance.learn_reference(twins, chances, tried, accepted)
        for one, twin in zip(mine, plain, strict=True):
            np.testing.assert_allclose(one.counts, twin.counts, rtol=1e-12, atol=1e-300)
            assert one.alarm == pytest.approx(twin.alarm, rel=1e-9, abs=1e-12)
        news = np.stack([tried.sum(0), accepted.sum(0)])
        np.testing.assert_allclose(engine.counts, before * 0.995 ** len(some) + news, rtol=1e-12)
