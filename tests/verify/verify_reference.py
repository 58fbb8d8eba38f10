"""The rules once more, slow and obvious: one row at a time, Python loops, float64, full sort, sums in token order.

Written from the rules' text alone; shares no code with the package. Every decision also reports how close it came to
going the other way, so that tests can set aside cases that rounding may decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Margin:
    """Smallest distance to a decision boundary met so far, relative to a mass of 1."""

    least: float = math.inf

    def note(self, distance: float) -> None:
        self.least = min(self.least, abs(distance))


@dataclass
class Setting:
    """Sampling of one sequence; `top_k` None, `top_p` None and `min_p` None mean off."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


@dataclass
class Distribution:
    probs: list[float]
    kept: list[bool]
    scaled: list[float]


@dataclass
class Outcome:
    accepted: int
    bonus: int
    margin: Margin = field(default_factory=Margin)


def distribution(row: list[float], setting: Setting, margin: Margin) -> Distribution:
    """Temperature, top-k, top-p over the survivors, min-p; ties to the lower id."""
    vocab = len(row)
    best = max(row)
    scaled = [(x - best) / setting.temperature if x > -math.inf else -math.inf for x in row]
    weight = [math.exp(s) if s > -math.inf else 0.0 for s in scaled]
    order = sorted(range(vocab), key=lambda v: (-row[v], v))
    survivors = [v for v in order if row[v] > -math.inf]
    if setting.top_k is not None:
        survivors = survivors[: setting.top_k]
    if setting.top_p is not None and setting.top_p < 1.0:
        total = sum(weight[v] for v in survivors)
        before, kept = 0.0, []
        for v in survivors:
            share = before / total
            if before > 0.0:
                margin.note(share - setting.top_p)
            if share < setting.top_p:
                kept.append(v)
            before += weight[v]
        survivors = kept
    if setting.min_p is not None and setting.min_p > 0.0:
        for v in survivors:
            if row[v] != best:
                margin.note(weight[v] - setting.min_p)
        survivors = [v for v in survivors if row[v] == best or weight[v] >= setting.min_p]
    keep = [False] * vocab
    for v in survivors:
        keep[v] = True
    total = 0.0
    for v in range(vocab):
        if keep[v]:
            total += weight[v]
    return Distribution([weight[v] / total if keep[v] else 0.0 for v in range(vocab)], keep, scaled)


def draw(mass: list[float], coin: float, margin: Margin) -> tuple[int, float]:
    """Inverse CDF in token order: the first token whose running sum exceeds coin * total; else the last with mass."""
    total = 0.0
    for m in mass:
        total += m
    target = coin * total
    running, last = 0.0, -1
    for v, m in enumerate(mass):
        if m <= 0.0:
            continue
        if running > 0.0:
            margin.note((running - target) / total)
        running += m
        last = v
        if running > target:
            margin.note((running - target) / total)
            return v, total
    return last, total


def greedy(candidates: list[int], predict: list[int]) -> Outcome:
    t = 0
    while t + 1 < len(candidates) and candidates[t + 1] == predict[t]:
        t += 1
    return Outcome(t, predict[t])


def target_only(
    candidates: list[int],
    rows: list[list[float]],
    setting: Setting,
    coins: list[float],
    final: float,
    single: float = 1.0,
    acc: float = 1.0,
) -> Outcome:
    margin = Margin()
    acc = max(acc, 1e-9)
    for t in range(len(candidates)):
        p = distribution(rows[t], setting, margin).probs
        if t + 1 == len(candidates):
            return Outcome(t, draw(p, final, margin)[0], margin)
        d = candidates[t + 1]
        if p[d] > 0.0:
            bound = p[d] / acc
            if bound < 2.0:
                margin.note(coins[t] - bound) if coins[t] > 0.0 else margin.note(bound)
            if single < 1.0:
                margin.note(p[d] - single)
            if coins[t] <= bound or p[d] >= single:
                continue
        rest = [0.0 if v == d else m for v, m in enumerate(p)]
        if sum(rest) == 0.0:
            continue
        return Outcome(t, draw(rest, final, margin)[0], margin)
    raise AssertionError("not reached")


def drafter_invariant(
    candidates: list[int], rows: list[list[float]], setting: Setting, noise: list[list[float]], length: int
) -> Outcome:
    """`noise[t][v]` is g(seed, position + t, v)."""
    margin = Margin()
    for t in range(length + 1):
        d = distribution(rows[t], setting, margin)
        scores = sorted(
            ((d.scaled[v] + noise[t][v], -v) for v in range(len(rows[t])) if d.kept[v]), reverse=True
        )
        if len(scores) > 1:
            margin.note(scores[0][0] - scores[1][0])
        choice = -scores[0][1]
        if t == length or candidates[t + 1] != choice:
            return Outcome(t, choice, margin)
    raise AssertionError("not reached")


def rejection(
    candidates: list[int],
    rows: list[list[float]],
    draft_probs: list[list[float]],
    setting: Setting,
    coins: list[float],
    final: float,
    length: int,
) -> Outcome:
    margin = Margin()
    for t in range(length + 1):
        p = distribution(rows[t], setting, margin).probs
        if t == length:
            return Outcome(t, draw(p, final, margin)[0], margin)
        d, q = candidates[t + 1], draft_probs[t]
        if coins[t] > 0.0:
            margin.note(coins[t] * q[d] - p[d])
        if coins[t] * q[d] < p[d]:
            continue
        residual = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
        if sum(residual) > 0.0:
            margin.note(sum(residual))
            return Outcome(t, draw(residual, final, margin)[0], margin)
        return Outcome(t, draw(p, final, margin)[0], margin)
    raise AssertionError("not reached")
