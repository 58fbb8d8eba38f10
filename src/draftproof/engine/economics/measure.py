"""Measuring what passes cost, within a time budget."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftproof.engine.economics.costs import CostTable
from draftproof.engine.economics.curve import CostCurve

Runner = Callable[[int, int], float]
"""Runs one pass of so many sequences with so much each (rows, draft slots, tokens); returns its seconds."""

MOST_REPEATS = 7
DRAFTER_SHARE, EXTEND_SHARE = 0.25, 0.1
"""Of the budget, at most; the target, which is dearest, comes last and has what is left."""


@dataclass
class _Point:
    sequences: int
    each: int
    seconds: list[float] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.sequences * self.each

    @property
    def typical(self) -> float:
        """Lower quartile, as whatever disturbs a run makes it longer."""
        return sorted(self.seconds)[(len(self.seconds) - 1) // 4]


def measure_costs(
    run_target: Runner,
    run_drafter: Runner | None,
    run_extend: Runner | None,
    *,
    max_sequences: int,
    max_draft_tokens: int,
    budget_s: float = 4.0,
    measured_context: int = 0,
    run_target_long: Runner | None = None,
    long_context: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> CostTable:
    """Measure this machine's costs.

    Sizes come most important first; what the budget has no time for is extrapolated from the smaller ones. All sizes
    are run in turns, several times, so that a slow moment of the machine does not fall on one of them alone.

    Args:
        run_target: verify passes; `each` rows a sequence, `measured_context` tokens before them.
        run_drafter: drafter passes; `each` draft slots a sequence; None: drafting costs nothing (n-gram).
        run_extend: context upkeep; `each` tokens a sequence; None: none is needed.
        max_sequences: most sequences in a step.
        max_draft_tokens: most draft tokens of a sequence.
        budget_s: wall seconds to spend; exceeded by no more than the smallest passes need.
        measured_context: context of `run_target`'s sequences, tokens.
        run_target_long: like `run_target`, with `long_context` tokens before the rows; None: context costs nothing.
        long_context: see there.
        clock: seconds; for tests.
    """
    start = clock()
    verify = 1 + max_draft_tokens
    wide = _batches(max_sequences)
    drafter = extend = None
    if run_drafter is not None and max_draft_tokens:
        shapes = [(1, max_draft_tokens), (1, 1), (1, max(1, max_draft_tokens // 2))]
        shapes += [(n, max_draft_tokens) for n in wide] + [(n, 1) for n in wide]
        drafter = _run_all(run_drafter, _points(shapes), clock, start + DRAFTER_SHARE * budget_s)
    if run_extend is not None:
        shapes = [(1, 1), (1, 8), (1, 64), *((n, 2) for n in wide)]
        extend = _run_all(run_extend, _points(shapes), clock, clock() + EXTEND_SHARE * budget_s)
    shapes = [(1, 1), (1, verify), (1, 2), (1, 4), *((n, 1) for n in wide), *((n, verify) for n in wide)]
    target = _run_all(run_target, _points(shapes), clock, start + budget_s)
    per_context = 0.0
    if run_target_long is not None and long_context > measured_context:
        short = min(run_target(1, verify) for _ in range(3))
        long = min(run_target_long(1, verify) for _ in range(3))
        per_context = max(0.0, long - short) / (verify * (long_context - measured_context))
    return CostTable(_curve(target), _curve(drafter), _curve(extend), per_context, measured_context)


def _batches(most: int) -> list[int]:
    """4, 16, 32, ... sequences, and the most there can be."""
    return [n for n in (4, 16, 32) if n < most] + ([most] if most > 1 else [])


def _points(shapes: Sequence[tuple[int, int]]) -> list[_Point]:
    return [_Point(*shape) for shape in dict.fromkeys(shapes)]


def _run_all(run: Runner, points: list[_Point], clock: Callable[[], float], deadline: float) -> list[_Point]:
    """Rounds over the points until the deadline; the first two points are run twice in any case."""
    for point in points[:2]:  # first runs also compile kernels and pack weights
        point.seconds += [run(point.sequences, point.each), run(point.sequences, point.each)]
    for round_number in range(MOST_REPEATS):
        for point in points:
            if round_number and not point.seconds:
                continue  # too big for the budget in the first round
            if clock() + _guess(points, point) <= deadline:
                point.seconds.append(run(point.sequences, point.each))
    return [point for point in points if point.seconds]


def _guess(points: Sequence[_Point], point: _Point) -> float:
    """What a run of this size will take; if there was none yet, in proportion to the largest one so far."""
    if point.seconds:
        return min(point.seconds)
    rows, seconds = max((other.rows, min(other.seconds)) for other in points if other.seconds)
    return seconds * max(1.0, point.rows / rows)


def _curve(points: list[_Point] | None) -> CostCurve:
    """Fit ``curve(rows) + per_sequence * sequences`` to the medians."""
    if not points:
        return CostCurve([1], [1e-9])
    by_rows: dict[int, list[_Point]] = {}
    for point in points:
        by_rows.setdefault(point.rows, []).append(point)
    slopes = [
        (a.typical - b.typical) / (a.sequences - b.sequences)
        for same in by_rows.values()
        for a in same
        for b in same
        if a.sequences > b.sequences
    ]
    per_sequence = max(0.0, float(np.median(slopes))) if slopes else 0.0
    # Not more than the smallest pass leaves room for.
    per_sequence = min(per_sequence, 0.5 * min(point.typical / point.sequences for point in points))
    rows = sorted(by_rows)
    seconds = [
        statistics.median(point.typical - per_sequence * point.sequences for point in by_rows[size])
        for size in rows
    ]
    return CostCurve(rows, seconds, per_sequence)
