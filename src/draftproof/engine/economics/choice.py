"""Draft lengths for all sequences of a step together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftproof.engine.economics.costs import CostTable

LEAST = 1e-3
"""A draft token that survives less often than this never pays."""
MARGIN = 0.03
"""Drafting must promise this much more than not drafting: estimates err, deciding costs time too, and the known is better when
even."""


@dataclass(frozen=True)
class StepShape:
    """What a step holds besides draft tokens.

    Attributes:
        sequences: sequences that decode, one row each.
        other_rows: rows of prefill that share the target's pass.
        contexts: tokens in each decoding sequence, float64 ``[sequences]``.
        backlog: tokens of each sequence that the drafter's context still lacks, float64 ``[sequences]``.
    """

    sequences: int
    other_rows: int
    contexts: np.ndarray
    backlog: np.ndarray


@dataclass(frozen=True)
class Choice:
    """Draft lengths int64 ``[sequences]``, and the tokens per second of decoding that they promise."""

    lengths: np.ndarray
    rate: float


def best_lengths(
    survival: np.ndarray,
    shape: StepShape,
    costs: CostTable,
    row_weight: np.ndarray | None = None,
    drafted: np.ndarray | None = None,
) -> Choice:
    """The lengths that maximise expected committed tokens per second of the whole step.

    The best set of m draft tokens are the m likeliest to survive, whichever sequences they belong to; as survival
    never rises along a sequence, they are the leading drafts of each. So all totals m are priced and the best taken.

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
    n, most = survival.shape
    flat = survival.ravel()
    order = np.argsort(-flat, kind="stable")
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
    rates = tokens / seconds
    best = int(rates.argmax())
    margin = MARGIN if drafted is None else 0.0
    if rates[best] <= rates[0] * (1.0 + margin):
        best = 0
    rate = float(rates[best])
    if shape.other_rows:
        seconds = costs.target.at(rows + shape.other_rows, n) + extra
        worth = tokens - rate * seconds
        best = int(worth.argmax())
    return Choice(np.bincount(members[:best], minlength=n), rate)


def _running(values: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, 2, ... values."""
    total = np.zeros(len(values) + 1)
    np.cumsum(values, out=total[1:])
    return total
