"""What is worked out at every step that drafts, compiled: dozens of numpy calls on a few numbers each took half a millisecond.

Each function has its plain form beside the place where it is used (`best_lengths_reference`, `EngineAcceptance.of_reference`,
`EngineAcceptance.learn_reference`), and tests hold the two together.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from draftproof.verify.kernels.compiling import compiler

_compile = compiler(Path(__file__).parent)()


@_compile
def _seconds(curve, rows, sequences):
    """`CostCurve.one`; `curve` is its `table`: sizes, heights, and seconds for each sequence in the corner."""
    if rows <= 0.0:
        return 0.0
    last = curve.shape[1] - 2
    if rows <= curve[0, 0]:
        cost = curve[1, 0]
    elif rows >= curve[0, last]:
        cost = curve[1, last]
    else:
        j = 0
        while curve[0, j + 1] < rows:
            j += 1
        share = (rows - curve[0, j]) / (curve[0, j + 1] - curve[0, j])
        cost = curve[1, j] + share * (curve[1, j + 1] - curve[1, j])
    return cost + curve[1, last + 1] * sequences


@_compile
def lengths_of(
    survival,
    weight,
    drafted,
    contexts,
    backlog,
    other_rows,
    refilled,
    margin,
    target,
    drafter,
    extend,
    per_context,
    measured_context,
    least,
    recent,
    backlog_steps,
):
    """`choice.best_lengths`: (lengths int64 ``[n]``, rate). `weight` and `drafted` are empty where there are none."""
    n, most = survival.shape
    worth = np.empty(n * most)
    count = 0
    beyond = 0.0
    for i in range(n):
        so_far = 1.0
        beyond += max(0.0, contexts[i] - measured_context)
        for j in range(most):
            s = survival[i, j]
            after = so_far + s
            if s >= least:
                worth[i * most + j] = s if refilled else 1.0 / so_far - 1.0 / after
                count += 1
            else:
                worth[i * most + j] = -1.0
            so_far = after
    order = np.argsort(-worth, kind="mergesort")[:count]
    slots = 0.0
    drafting = 0.0
    for i in range(drafted.shape[0]):
        slots += drafted[i]
        drafting += 1.0 if drafted[i] > 0 else 0.0
    paid = _seconds(drafter, slots, drafting)
    tokens, rows, saved, behind, firsts, dear = float(n), float(n), 0.0, 0.0, 0.0, beyond
    counted, times = np.empty(count + 1), np.empty(count + 1)
    beside = np.empty(count + 1)
    for m in range(count + 1):
        if m:
            at = order[m - 1]
            i, j = at // most, at % most
            tokens += survival[i, j]
            saved += worth[at]
            rows += weight[i, j] if weight.shape[0] else 1.0
            dear += max(0.0, contexts[i] - measured_context)
            if j == 0:
                firsts += 1.0
                behind += max(0.0, backlog[i] - recent)
        extra = per_context * dear
        if drafted.shape[0]:
            extra += paid
        elif m:
            extra += _seconds(drafter, float(m), firsts)
            extra += (
                _seconds(extend, tokens * (firsts / n), 0.0) + _seconds(extend, behind, 0.0) / backlog_steps
            )
        counted[m] = tokens if refilled else n * n / (n - saved)
        times[m] = _seconds(target, rows, float(n)) + extra
        beside[m] = _seconds(target, rows + other_rows, float(n)) + extra if other_rows else 0.0
    best = min(1, count)
    for m in range(2, count + 1):
        if counted[m] / times[m] > counted[best] / times[best]:
            best = m
    if counted[best] / times[best] <= counted[0] / times[0] * (1.0 + margin):
        best = 0
    rate = counted[best] / times[best]
    if other_rows:
        best = 0
        for m in range(1, count + 1):
            if counted[m] - rate * beside[m] > counted[best] - rate * beside[best]:
                best = m
    lengths = np.zeros(n, np.int64)
    for m in range(best):
        lengths[order[m] // most] += 1
    return lengths, rate


@_compile
def estimates_of(counts, means, request_weight, pool_weight):
    """`EngineAcceptance.of`, counts float64 ``[n, 2, most]``."""
    n, _, most = counts.shape
    chances = np.empty((n, most))
    for i in range(n):
        expected, total, kept = 0.0, 0.0, 0.0
        for j in range(most):
            expected += counts[i, 0, j] * means[j]
            total += counts[i, 0, j]
            kept += counts[i, 1, j]
        for j in range(most):
            # Of the other positions: what was tried here counts below.
            there, good = total - counts[i, 0, j], kept - counts[i, 1, j]
            hoped = expected - counts[i, 0, j] * means[j]
            odds = (good + pool_weight) / (hoped + pool_weight)
            odds *= (there - hoped + pool_weight) / (there - good + pool_weight)
            moved = means[j] * odds
            prior = moved / (1.0 - means[j] + moved)
            chances[i, j] = (counts[i, 1, j] + request_weight * prior) / (counts[i, 0, j] + request_weight)
    return chances


@_compile
def plan_of(
    counts,
    means,
    request_weight,
    pool_weight,
    allowed,
    contexts,
    backlog,
    skill,
    other_rows,
    refilled,
    margin,
    target,
    drafter,
    extend,
    per_context,
    measured_context,
    least,
    recent,
    backlog_steps,
):
    """`choice.plan_lengths`: (lengths int64 ``[n]``, rate, chances ``[n, most]``)."""
    chances = estimates_of(counts, means, request_weight, pool_weight)
    n, most = chances.shape
    survival = np.zeros((n, most))
    for i in range(n):
        through = 1.0
        for j in range(min(most, int(allowed[i]))):
            through *= chances[i, j]
            survival[i, j] = through
    weight = np.empty((n if skill else 0, most))
    for i in range(weight.shape[0]):
        for j in range(most):
            weight[i, j] = 1.0 - skill * (1.0 - survival[i, j])
    lengths, rate = lengths_of(
        survival, weight, np.empty(0, np.int64), contexts, backlog, other_rows, refilled, margin, target, drafter,
        extend, per_context, measured_context, least, recent, backlog_steps,
    )  # fmt: skip
    return lengths, rate, chances


@_compile
def losses_of(
    first,
    backlog,
    drafts,
    drafting,
    rows,
    sequences,
    room,
    token_s,
    cold_s,
    target,
    drafter,
    extend,
    full_gain,
):
    """`probes.losses`: expected seconds lost by the first 1, 2, ... trials, float64 ``[k]``; empty where none can pay."""
    best, plain = 0.0, 0.0
    for each in range(room + 1):
        seconds = _seconds(target, float(sequences * (1 + each)), float(sequences))
        if each:
            seconds += _seconds(drafter, float(sequences * each), float(sequences))
            seconds += _seconds(extend, float(sequences * (1 + each)), 0.0)
        rate = (1 + each) / seconds
        plain = rate if each == 0 else plain
        best = max(best, rate)
    gain = best / plain - 1.0
    loss = np.empty(first.shape[0] if gain > 1e-3 else 0)
    dearness = max(1.0, full_gain / gain) if gain > 1e-3 else 0.0
    before = _seconds(target, float(rows), float(sequences))
    before += _seconds(drafter, float(drafts), float(drafting))
    late, hoped = 0.0, 0.0
    for k in range(loss.shape[0]):
        more = float(k + 1)
        late += max(1.0, backlog[k])
        hoped += first[k]
        seconds = _seconds(target, rows + more, float(sequences)) - before
        seconds += _seconds(drafter, drafts + more, drafting + more) + _seconds(extend, late, 0.0) + cold_s
        loss[k] = dearness * max(seconds - hoped * token_s, 0.05 * seconds)
    return loss


@_compile
def _logit(chance):
    clipped = min(max(chance, 1e-3), 1.0 - 1e-3)
    return math.log(clipped / (1.0 - clipped))


@_compile
def _sure(confidence, chance, weights):
    """`ConfidenceMap.chances` for one token."""
    score = weights[0] + weights[1] * _logit(confidence) + weights[2] * _logit(chance)
    return 1.0 / (1.0 + math.exp(-score))


@_compile
def trim_of(
    drafted,
    sizes,
    confidence,
    chances,
    weights,
    contexts,
    backlog,
    other_rows,
    refilled,
    target,
    drafter,
    extend,
    per_context,
    measured_context,
    least,
    recent,
    backlog_steps,
):
    """`choice.trim_lengths`: lengths int64 ``[n]``. `drafted` and `sizes` are int64 ``[n]``, `confidence` is flat."""
    n, most = chances.shape
    survival = np.zeros((n, most))
    first = 0
    for i in range(n):
        through = 1.0
        for j in range(min(most, drafted[i])):
            chance = chances[i, j]
            if j < sizes[i]:
                chance = _sure(confidence[first + j], chance, weights)
            through *= chance
            survival[i, j] = through
        first += sizes[i]
    lengths, _ = lengths_of(
        survival, np.empty((0, 0)), drafted, contexts, backlog, other_rows, refilled, 0.0, target, drafter, extend,
        per_context, measured_context, least, recent, backlog_steps,
    )  # fmt: skip
    return lengths


@_compile
def outcomes_of(ends, sizes, confidence, chances, weights):
    """What a step's drafts say: (reached ``[n, most]``, expected ``[n, most]``, told ``[k, 3]``); see `outcomes.Evidence`.

    `ends` is int64 ``[n, 2]``: verified, accepted; `sizes` int64 ``[n]``: how many of `confidence` (flat) are a sequence's.
    """
    n, most = chances.shape
    reached, expected = np.zeros((n, most)), np.zeros((n, most))
    told = np.empty((confidence.shape[0], 3))
    count, first = 0, 0
    for i in range(n):
        verified, accepted = ends[i, 0], ends[i, 1]
        through = 1.0
        for j in range(most):
            known = j < sizes[i]
            if j < accepted:
                expected[i, j] = 1.0
            if j < verified and j <= accepted:
                reached[i, j] = 1.0
                if known:
                    told[count, 0] = _logit(confidence[first + j])
                    told[count, 1] = _logit(chances[i, j])
                    told[count, 2] = 1.0 if j < accepted else 0.0
                    count += 1
            elif known and j >= verified and accepted == verified:
                score = (
                    weights[0]
                    + weights[1] * _logit(confidence[first + j])
                    + weights[2] * _logit(chances[i, j])
                )
                chance = 1.0 / (1.0 + math.exp(-score))
                reached[i, j] += through
                through *= chance
                expected[i, j] += through
        first += sizes[i]
    return reached, expected, told[:count]


@_compile
def learn(counts, keep, alarms, chances, tried, accepted, turn, alarm, weight):
    """`EngineAcceptance.learn`: changes counts ``[n, 2, most]`` and alarms ``[n]`` in place."""
    n, _, most = counts.shape
    for i in range(n):
        more = 0.0
        for j in range(most):
            chance = chances[i, j]
            worse = chance / (turn - (turn - 1.0) * chance)
            if accepted[i, j] != 0.0:
                more += accepted[i, j] * math.log(worse / chance)
            if tried[i, j] != accepted[i, j]:
                more += (tried[i, j] - accepted[i, j]) * math.log((1.0 - worse) / (1.0 - chance))
        alarms[i] = max(0.0, alarms[i] + more)
        kept = keep[i]
        turned = alarms[i] > alarm
        if turned:
            alarms[i] = 0.0
        for j in range(most):
            counts[i, 0, j] = counts[i, 0, j] * kept + tried[i, j]
            counts[i, 1, j] = counts[i, 1, j] * kept + accepted[i, j]
            if turned:  # as many pseudo counts as the engine's mean has, so that the two together say `worse`
                chance = chances[i, j]
                worse = chance / (turn - (turn - 1.0) * chance)
                counts[i, 0, j] = weight
                counts[i, 1, j] = weight * max(0.0, 2.0 * worse - chance)


def warm_up() -> None:
    """Compile, or load what is kept on disk, so that the first step does not have to."""
    curve, one = np.ones((2, 3)), np.ones(1)
    lengths_of(
        np.full((1, 1), 0.5), np.empty((0, 0)), np.empty(0, np.int64), one, one, 0, True, 0.03, curve, curve, curve,
        0.0, 0.0, 1e-3, 16.0, 32.0,
    )  # fmt: skip
    chances = estimates_of(np.zeros((1, 2, 1)), np.full(1, 0.5), 4.0, 4.0)
    plan_of(
        np.zeros((1, 2, 1)), np.full(1, 0.5), 4.0, 4.0, one, one, one, 0.0, 0, True, 0.03, curve, curve, curve, 0.0,
        0.0, 1e-3, 16.0, 32.0,
    )  # fmt: skip
    losses_of(one, one, 0, 0, 1, 1, 1, 1.0, 0.0, curve, curve, curve, 0.3)
    whole = np.ones(1, np.int64)
    trim_of(
        whole,
        whole,
        one,
        chances,
        np.ones(3),
        one,
        one,
        0,
        True,
        curve,
        curve,
        curve,
        0.0,
        0.0,
        1e-3,
        16.0,
        32.0,
    )
    outcomes_of(np.ones((1, 2), np.int64), np.zeros(1, np.int64), np.empty(0), chances, np.ones(3))
    learn(np.zeros((1, 2, 1)), one, np.zeros(1), chances, np.ones((1, 1)), np.ones((1, 1)), 8.0, 4.0, 8.0)
