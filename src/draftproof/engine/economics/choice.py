"""Draft lengths for all sequences of a step together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.engine.economics.compiled import lengths_of, plan_of, trim_of
from draftproof.engine.economics.confidences import FlatConfidence
from draftproof.engine.economics.costs import BACKLOG_STEPS, RECENT, CostTable

LEAST = 1e-3
"""A draft token that survives less often than this never pays."""
MARGIN = 0.03
"""Drafting must promise this much more than not drafting: estimates err, deciding costs time too, and the known is better when
even."""
MARGIN_TO_STAY = -0.04
"""A sequence alone that is being drafted goes on until drafting promises to lose this much: a few drafts say little about what
comes, and to stop for a while and start again costs more than to go on at a small loss."""
MARGIN_TOGETHER = 0.05
"""The same for several sequences whose places nobody is waiting for: with drafts they end at different steps, and what the last
ones lose in a batch that empties is in no estimate. In simulations of closed batches of 2 to 8 on a fast target, losses where
drafting is not worth it fall by about a third against `MARGIN`, for at most 3% less where it is."""


_NO_WEIGHTS, _NO_LENGTHS = np.empty((0, 0)), np.empty(0, np.int64)


@dataclass(frozen=True)
class StepShape:
    """What a step holds besides draft tokens.

    Attributes:
        sequences: sequences that decode, one row each.
        other_rows: rows of prefill that share the target's pass.
        contexts: tokens in each decoding sequence, float64 ``[sequences]``.
        backlog: tokens of each sequence that the drafter's context still lacks, float64 ``[sequences]``.
        refilled: whether others wait to take the place of a sequence that ends; see `best_lengths`.
        warm: whether the step before drafted.
    """

    sequences: int
    other_rows: int
    contexts: np.ndarray
    backlog: np.ndarray
    refilled: bool = True
    warm: bool = False

    @property
    def worth_of_one(self) -> float:
        """What one more token of one sequence counts among tokens as `best_lengths` counts them."""
        n = self.sequences
        return 1.0 if self.refilled else 0.5 * n / (n - 0.5)


@dataclass(frozen=True)
class Choice:
    """Draft lengths int64 ``[sequences]``, and the tokens per second of decoding that they promise, counted as chosen."""

    lengths: np.ndarray
    rate: float


def plan_lengths(
    counts: np.ndarray,
    means: np.ndarray,
    weights: tuple[float, float],
    allowed: np.ndarray,
    skill: float,
    shape: StepShape,
    costs: CostTable,
) -> tuple[Choice, np.ndarray]:
    """Everything between counts and lengths in one compiled call: estimates, survival, `best_lengths`.

    Args:
        counts, means, weights: as `acceptance.estimates` takes them.
        allowed: most drafts of each sequence, float64 ``[sequences]``.
        skill: how well the drafter's confidence tells what will be accepted: drafts it will cut off later cost no rows.
        shape, costs: as for `best_lengths`.

    Returns:
        The choice, and the estimated chances ``[sequences, most]``.
    """
    lengths, rate, chances = plan_of(
        counts,
        means,
        *weights,
        allowed,
        shape.contexts,
        shape.backlog,
        skill,
        shape.other_rows,
        shape.refilled or shape.sequences == 1,
        _margin(shape, None),
        costs.target.table,
        costs.drafter.table,
        costs.extend.table,
        costs.per_context,
        float(costs.measured_context),
        LEAST,
        float(RECENT),
        float(BACKLOG_STEPS),
    )
    return Choice(lengths, rate), chances


def plan_lengths_reference(
    chances: np.ndarray, allowed: np.ndarray, skill: float, shape: StepShape, costs: CostTable
) -> Choice:
    """`plan_lengths` in plain numpy, from estimated chances on."""
    survival = survival_of(chances, allowed)
    return best_lengths_reference(survival, shape, costs, 1.0 - skill * (1.0 - survival) if skill else None)


def trim_lengths(
    drafted: Sequence[int],
    confidence: FlatConfidence,
    chances: np.ndarray,
    weights: np.ndarray,
    shape: StepShape,
    costs: CostTable,
) -> list[int]:
    """How far to verify drafts, now that the drafter has said how sure it is: one compiled call.

    Args:
        drafted: tokens that each sequence has.
        confidence: the drafter's.
        chances: by counts, ``[n, most]``.
        weights: of a `ConfidenceMap`.
        shape, costs: as for `best_lengths`.
    """
    lengths: list[int] = trim_of(
        np.array(drafted, np.int64),
        confidence.sizes,
        confidence.values,
        chances,
        weights,
        shape.contexts,
        shape.backlog,
        shape.other_rows,
        shape.refilled or shape.sequences == 1,
        costs.target.table,
        costs.drafter.table,
        costs.extend.table,
        costs.per_context,
        float(costs.measured_context),
        LEAST,
        float(RECENT),
        float(BACKLOG_STEPS),
    ).tolist()
    return lengths


def survival_of(chances: np.ndarray, room: np.ndarray) -> np.ndarray:
    """P(draft j and all before it accepted), ``[n, most]``; 0 beyond the room of a sequence."""
    survival: np.ndarray = np.cumprod(chances, axis=1)
    survival[np.arange(chances.shape[1]) >= room[:, None]] = 0.0
    return survival


def best_lengths(
    survival: np.ndarray,
    shape: StepShape,
    costs: CostTable,
    row_weight: np.ndarray | None = None,
    drafted: np.ndarray | None = None,
) -> Choice:
    """The lengths that serve the sequences of a step best.

    Where others wait for a place that is throughput: expected committed tokens per second of the whole step. The best
    set of m draft tokens are then the m likeliest to survive, whichever sequences they belong to; as survival never rises
    along a sequence, they are the leading drafts of each. So all totals m are priced and the best taken.

    Where nobody waits, a sequence that runs ahead leaves its place empty, and the others, who were slowed down by its
    drafts, go on in a batch that is worse used. There the expected time per token is made small, averaged over the
    sequences: tokens count by their harmonic mean. What a draft adds to it falls along a sequence too.

    Prefill rows are work to be done anyway. What a second is worth is therefore the rate of a step without them,
    and drafts that ride along must pay for the time they add (Dinkelbach 1967, on ratios as prices).

    Args:
        survival: P(draft j and all before it accepted), ``[sequences, most]``, never rising along a row, 0 where
            there is no room.
        shape: the step.
        costs: this machine's.
        row_weight: expected share of the draft rows that will be verified, like `survival`; None: all.
        drafted: after the drafter has run: the lengths it was asked for, which are paid for already.
    """
    lengths, rate = lengths_of(
        survival,
        _NO_WEIGHTS if row_weight is None else row_weight,
        _NO_LENGTHS if drafted is None else drafted,
        shape.contexts,
        shape.backlog,
        shape.other_rows,
        shape.refilled or shape.sequences == 1,
        _margin(shape, drafted),
        costs.target.table,
        costs.drafter.table,
        costs.extend.table,
        costs.per_context,
        float(costs.measured_context),
        LEAST,
        float(RECENT),
        float(BACKLOG_STEPS),
    )
    return Choice(lengths, rate)


def _margin(shape: StepShape, drafted: np.ndarray | None) -> float:
    if drafted is not None:
        return 0.0
    if shape.sequences == 1:
        return MARGIN_TO_STAY if shape.warm else MARGIN
    return MARGIN if shape.refilled else MARGIN_TOGETHER


def best_lengths_reference(
    survival: np.ndarray,
    shape: StepShape,
    costs: CostTable,
    row_weight: np.ndarray | None = None,
    drafted: np.ndarray | None = None,
) -> Choice:
    """`best_lengths` in plain numpy."""
    n, most = survival.shape
    flat = survival.ravel()
    worth = flat if shape.refilled or n == 1 else _time_saved(survival)
    order = np.argsort(-worth, kind="stable")
    order = order[: int((flat >= LEAST).sum())]
    steps = np.arange(len(order) + 1)
    tokens = n + _running(flat[order])
    rows = n + (steps if row_weight is None else _running(row_weight.ravel()[order]))
    members = order // most
    extra = np.zeros(len(steps))
    if costs.per_context:
        beyond = np.maximum(0.0, shape.contexts - costs.measured_context)
        extra += costs.per_context * (beyond.sum() + _running(beyond[members]))
    if drafted is None:
        first = order % most == 0
        extra += costs.drafter.at(steps, _running(first))
        extra[1:] += costs.upkeep(shape.backlog, members, first, tokens[1:])
    elif (slots := int(drafted.sum())) > 0:
        extra += costs.drafter.one(slots, int((drafted > 0).sum()))
    seconds = costs.target.at(rows, n) + extra
    if worth is not flat:
        tokens = n * n / (n - _running(worth[order]))
    rates = tokens / seconds
    best = 1 + int(rates[1:].argmax()) if len(rates) > 1 else 0
    if rates[best] <= rates[0] * (1.0 + _margin(shape, drafted)):
        best = 0
    rate = float(rates[best])
    if shape.other_rows:
        seconds = costs.target.at(rows + shape.other_rows, n) + extra
        best = int((tokens - rate * seconds).argmax())
    return Choice(np.bincount(members[:best], minlength=n), rate)


def _time_saved(survival: np.ndarray) -> np.ndarray:
    """How many steps a token each draft saves its sequence, as `survival` but flat; -1 for those not worth a look."""
    after = 1.0 + np.cumsum(survival, axis=1)
    saved: np.ndarray = np.where(survival >= LEAST, 1.0 / (after - survival) - 1.0 / after, -1.0).ravel()
    return saved


def _running(values: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, 2, ... values."""
    total = np.zeros(len(values) + 1)
    np.cumsum(values, out=total[1:])
    return total
