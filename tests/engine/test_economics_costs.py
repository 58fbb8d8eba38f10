"""Cost curves, their healing, their measurement and their keeping."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from economics_machine import drafter_curve, extend_curve, target_curve, true_costs
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.engine.economics import (
    CostCurve,
    CostKey,
    CostTable,
    StepCost,
    load_costs,
    measure_costs,
    save_costs,
)

KEY = CostKey("m", "bfloat16", "d", 2, "cpu", "2.13", "0.1")


def test_a_curve_goes_through_its_points_and_on_beyond_them() -> None:
    curve = CostCurve([1, 8, 16], [0.020, 0.024, 0.032], per_sequence=0.001)
    costs = curve.at(np.array([0, 1, 4.5, 8, 16, 24]), np.full(6, 2))
    assert costs.tolist() == pytest.approx([0.0, 0.022, 0.024, 0.026, 0.034, 0.034 + 8 * 0.012 / 15])


def test_noise_in_the_points_never_makes_more_rows_cheaper() -> None:
    curve = CostCurve([1, 2, 4, 8], [0.02, 0.05, 0.01, 0.03])
    assert (np.diff(curve.at(np.arange(1, 100))) >= 0).all()


def test_few_measured_sizes_do_not_make_rows_free() -> None:
    curve = CostCurve([1, 2, 8], [0.083, 0.083, 0.083])
    assert curve.one(32) == pytest.approx(0.083 + 24 * 0.25 * 0.083 / 8)


@pytest.mark.parametrize(
    ("rows", "seconds"), [([], []), ([1, 1], [1, 2]), ([2, 1], [1, 2]), ([1, 2], [1]), ([1], [float("nan")])]
)
def test_a_curve_that_is_none_is_refused(rows: list[float], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="cost curve"):
        CostCurve(rows, seconds)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(1e-5, 10.0)), max_size=60),
    st.integers(1, 300),
)
def test_whatever_is_observed_a_curve_rises_and_one_agrees_with_at(
    seen: list[tuple[int, float]], size: int
) -> None:
    curve = target_curve()
    for rows, seconds in seen:
        curve.observe(rows, 1, seconds)
    costs = curve.at(np.arange(1, 400))
    assert np.isfinite(costs).all()
    assert (costs > 0).all()
    assert (np.diff(costs) >= -1e-12).all()
    assert curve.one(size, 3) == pytest.approx(float(curve.at(size, 3)))


@pytest.mark.parametrize("scale", [0.5, 2.0, 4.0])
def test_a_wrong_scale_heals_everywhere(scale: float) -> None:
    """Observed at two sizes only, a curve is right at these and near at the others."""
    believed, truth = target_curve(scale), target_curve()
    for _ in range(80):
        believed.observe(1, 1, truth.one(1))
        believed.observe(8, 1, truth.one(8))
    for rows in (1, 8):
        assert believed.one(rows) == pytest.approx(truth.one(rows), rel=0.08)
    for rows in (2, 4, 16, 64):
        assert believed.one(rows) == pytest.approx(truth.one(rows), rel=0.35)


def test_a_wrong_shape_heals_where_it_is_seen() -> None:
    believed, truth = CostCurve([1, 2, 4, 8], [0.02] * 4), target_curve()
    for _ in range(150):
        for rows in (1, 2, 4, 8):
            believed.observe(rows, 1, truth.one(rows))
    for rows in (1, 2, 4, 8):
        assert believed.one(rows) == pytest.approx(truth.one(rows), rel=0.03)


def test_a_step_that_took_ten_times_as_long_hardly_counts() -> None:
    curve = target_curve()
    for _ in range(50):
        curve.observe(8, 1, 0.024)
    curve.observe(8, 1, 0.24)
    assert curve.one(8) == pytest.approx(0.024, rel=0.08)


def test_noise_with_outliers_leaves_the_estimate_near_the_truth() -> None:
    curve, luck = target_curve(), np.random.default_rng(5)
    estimates = []
    for _ in range(600):
        factor = np.exp(0.15 * luck.standard_normal()) * (10 if luck.random() < 0.03 else 1)
        curve.observe(8, 1, 0.024 * factor)
        estimates.append(curve.one(8))
    assert np.median(estimates[100:]) == pytest.approx(0.024, rel=0.06)
    assert max(estimates[100:]) < 1.5 * 0.024


def test_a_kind_that_did_not_run_teaches_nothing_and_prefill_teaches_nothing_of_the_target() -> None:
    costs = true_costs()
    before = (costs.target.one(8), costs.drafter.one(7), costs.extend.one(4))
    costs.observe_step(StepCost(8, 1, 0, 0, 0.0, 0.5, 0, 0.0, other_rows=7))
    assert (costs.target.one(8), costs.drafter.one(7), costs.extend.one(4)) == before
    ratio = costs.observe_step(StepCost(8, 1, 1, 7, 0.007, 0.024, 4, 0.0004))
    assert ratio == pytest.approx(0.0, abs=1e-9)
    assert costs.target.one(8) == pytest.approx(before[0])
    assert costs.drafter.one(7) > before[1]
    assert costs.extend.one(4) > before[2]


# ---- measuring


@dataclass
class Machine:
    """Passes that take no time but move a clock of their own."""

    scale: float = 1.0
    per_sequence: float = 0.0
    hiccup_every: int = 0
    now: float = 0.0
    calls: list[tuple[str, int, int]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def run(self, kind: str, sequences: int, each: int) -> float:
        curve = {"target": target_curve(), "drafter": drafter_curve(), "extend": extend_curve()}[kind]
        self.calls.append((kind, sequences, each))
        seconds = self.scale * curve.one(sequences * each) + self.per_sequence * sequences
        if self.hiccup_every and len(self.calls) % self.hiccup_every == 0:
            seconds *= 10
        self.now += seconds
        return seconds

    def measure(self, max_sequences: int = 32, budget_s: float = 4.0) -> CostTable:
        return measure_costs(
            lambda n, each: self.run("target", n, each),
            lambda n, each: self.run("drafter", n, each),
            lambda n, each: self.run("extend", n, each),
            max_sequences=max_sequences,
            max_draft_tokens=7,
            budget_s=budget_s,
            clock=self.clock,
        )


@pytest.mark.parametrize("hiccup_every", [0, 11])
def test_measured_costs_are_the_machines(hiccup_every: int) -> None:
    machine = Machine(hiccup_every=hiccup_every)
    costs = machine.measure()
    assert machine.now <= 4.5 if hiccup_every else machine.now <= 4.0
    for rows in (1, 2, 8, 16, 32, 100, 256):
        assert costs.target.one(rows, 1) == pytest.approx(target_curve().one(rows), rel=0.08)
    for slots in (1, 7, 28, 224):
        assert costs.drafter.one(slots, 1) == pytest.approx(drafter_curve().one(slots), rel=0.08)
    assert costs.extend.one(8) == pytest.approx(extend_curve().one(8), rel=0.05)


def test_what_a_sequence_costs_is_told_from_what_a_row_costs() -> None:
    costs = Machine(per_sequence=0.0004).measure()
    assert costs.target.per_sequence == pytest.approx(0.0004, rel=0.05)
    assert costs.target.one(32, 32) == pytest.approx(target_curve().one(32) + 32 * 0.0004, rel=0.02)
    assert costs.target.one(32, 4) == pytest.approx(target_curve().one(32) + 4 * 0.0004, rel=0.02)


@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_a_slow_machine_is_measured_at_few_sizes_within_the_budget(scale: float) -> None:
    machine = Machine(scale=scale)
    costs = machine.measure(budget_s=4.0)
    # Two sizes of each kind are measured, twice, whatever they take.
    least = sum(
        2 * scale * curve.one(size)
        for curve, sizes in (
            (target_curve(), (1, 8)),
            (drafter_curve(), (7, 1)),
            (extend_curve(), (1, 8)),
        )
        for size in sizes
    )
    assert machine.now <= 4.0 + least
    assert len(machine.calls) < 100
    assert costs.target.one(8, 1) == pytest.approx(scale * 0.024, rel=0.05)
    assert costs.target.one(32, 1) > costs.target.one(8, 1)


def test_what_the_first_run_of_a_size_pays_for_is_not_measured() -> None:
    machine = Machine()
    seen: set[tuple[int, int]] = set()

    def run(sequences: int, each: int) -> float:
        compiling = 0.0 if (sequences, each) in seen else 0.1
        seen.add((sequences, each))
        machine.now += compiling
        return machine.run("target", sequences, each) + compiling

    costs = measure_costs(run, None, None, max_sequences=4, max_draft_tokens=7, clock=machine.clock)
    for rows in (1, 2, 4, 8, 32):
        assert costs.target.one(rows, 1) == pytest.approx(target_curve().one(rows), rel=0.05)


def test_one_sequence_at_a_time_is_measured_alone() -> None:
    machine = Machine()
    machine.measure(max_sequences=1)
    assert {sequences for _, sequences, _ in machine.calls} == {1}


def test_sizes_are_run_in_turns() -> None:
    machine = Machine()
    machine.measure()
    target = [call for call in machine.calls if call[0] == "target"][4:]
    first = target.index(target[0], 1)
    assert len(set(target[:first])) == first >= 8


def test_a_drafter_without_passes_costs_nothing() -> None:
    costs = measure_costs(
        lambda n, each: 0.02, None, None, max_sequences=4, max_draft_tokens=7, clock=Machine().clock
    )
    assert costs.drafter.one(7, 1) < 1e-6
    assert costs.extend.one(100) < 1e-6


def test_long_contexts_are_priced_by_row_and_token() -> None:
    costs = measure_costs(
        lambda n, each: 0.02,
        None,
        None,
        max_sequences=1,
        max_draft_tokens=7,
        measured_context=128,
        run_target_long=lambda n, each: 0.02 + each * (1128 - 128) * 2e-7,
        long_context=1128,
        clock=Machine().clock,
    )
    assert costs.per_context == pytest.approx(2e-7)


# ---- keeping


def test_costs_are_kept_under_their_key(tmp_path: Path) -> None:
    costs = CostTable(target_curve(), drafter_curve(), extend_curve(), 1e-8, 256)
    assert load_costs(tmp_path, KEY) is None
    assert save_costs(tmp_path / "new" / "folder", KEY, costs)
    again = load_costs(tmp_path / "new" / "folder", KEY)
    assert again is not None
    assert again.to_json() == costs.to_json()
    for other in (
        replace(KEY, model="n"),
        replace(KEY, threads=1),
        replace(KEY, drafter="e"),
        replace(KEY, version="0.2"),
    ):
        assert load_costs(tmp_path / "new" / "folder", other) is None
    assert [path.suffix for path in (tmp_path / "new" / "folder").iterdir()] == [".json"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"key": {}, "costs": {}}', None],
)
def test_a_spoilt_file_is_no_table(tmp_path: Path, text: str | None) -> None:
    save_costs(tmp_path, KEY, true_costs())
    file = KEY.file(tmp_path)
    if text is None:  # right in all but one number
        data = json.loads(file.read_text(encoding="utf-8"))
        data["costs"]["target"]["seconds"][0] = None
        text = json.dumps(data)
    file.write_text(text, encoding="utf-8")
    assert load_costs(tmp_path, KEY) is None


def test_a_folder_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    assert not save_costs(tmp_path / "file", KEY, true_costs())
    assert load_costs(tmp_path / "file", KEY) is None
