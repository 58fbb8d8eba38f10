"""A simulated machine: known costs, known acceptance, the real `Economist`. Time is a sum of numbers, never measured."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from draftproof.engine.economics import (
    CostCurve,
    CostTable,
    DraftMode,
    DraftOutcome,
    DraftWish,
    Economist,
    StepCost,
)

MOST = 7
UPKEEP_S = 0.00005

Chance = Callable[[int, int], float]
"""P(draft accepted | those before it accepted), of the token's place in the output and of the draft's number from 0."""


SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def target_curve(scale: float = 1.0) -> CostCurve:
    """SmolLM2-135M on two cores, seconds by rows."""
    return curve(
        [1, 8, 16, 256], [0.020 * scale, 0.024 * scale, 0.029 * scale, (0.029 + 240 * 0.0011) * scale]
    )


def drafter_curve(scale: float = 1.0) -> CostCurve:
    """3.5 ms for 7 slots, 35 ms for 32 times 7."""
    slope = (0.035 - 0.0035) / 217
    return curve([1, 224], [scale * (0.0035 - 6 * slope), scale * 0.035])


def curve(rows: list[float], seconds: list[float]) -> CostCurve:
    """A line through these points, given at as many points as a measurement would have."""
    return CostCurve(SIZES, np.interp(SIZES, rows, seconds).tolist())


def extend_curve() -> CostCurve:
    return CostCurve([1, 1000], [UPKEEP_S, 1000 * UPKEEP_S])


def true_costs() -> CostTable:
    return CostTable(target_curve(), drafter_curve(), extend_curve())


def geometric(p: float) -> Chance:
    return lambda place, number: p


def decaying(p: float, by: float) -> Chance:
    return lambda place, number: p * by**number


def switching(before: float, after: float, at: int) -> Chance:
    return lambda place, number: before if place < at else after


@dataclass
class Text:
    """One running sequence of the simulation."""

    chance: Chance
    luck: np.random.Generator
    length: int
    acceptance: object
    written: int = 0
    backlog: int = 0


@dataclass
class Run:
    """What a simulation came to."""

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    log: list[tuple[int, int]] | None = None

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def simulate(
    mode: str,
    chances: list[Chance],
    *,
    batch: int,
    tokens: int,
    length: int = 256,
    believed: CostTable | None = None,
    noise: float = 0.0,
    spread: float | None = None,
    show_confidence: bool = False,
    seed: int = 0,
    economist: Economist | None = None,
    log: bool = False,
    refill: bool = True,
    costs: CostTable | None = None,
) -> Run:
    """Serve requests of `length` tokens, `batch` at a time, until so many tokens are written.

    Request i accepts by ``chances[i % len(chances)]``; whether the token at a place would be accepted is decided by
    the request's and place's own random number, so all modes meet the same luck.

    Args:
        believed: the cost table at start, if it is not the truth.
        noise: of step times, standard deviation of the log; then one step in 50 takes ten times as long as well.
        spread: how far single tokens' acceptance differs from the chance: strength of a Beta distribution.
        refill: whether the next request takes the place of one that ends; else a batch runs to its end before the next one.
        costs: of this machine; those of `true_costs` when None.
        show_confidence: hand the drafter's confidences over: monotone in the token's own chance, but not equal.
    """
    truth = costs if costs is not None else true_costs()
    if economist is None:
        economist = Economist(DraftMode.parse(mode), believed or deepcopy(truth), MOST)
    clock = np.random.default_rng((seed, 1))
    started = 0
    running: list[Text] = []
    run = Run(log=[] if log else None)

    def jitter() -> float:
        if not noise:
            return 1.0
        return float(np.exp(noise * clock.standard_normal()) * (10.0 if clock.random() < 0.02 else 1.0))

    while run.tokens < tokens or (running and not refill):
        while len(running) < batch and (refill or started % batch or not running):
            luck = np.random.default_rng((seed, 2, started))
            text = Text(chances[started % len(chances)], luck, length, economist.new_request())
            # Real traffic is not in step: the first requests are found at different points.
            text.written = (length * len(running)) // batch if refill and started < batch and batch > 1 else 0
            text.dice = luck.random((length + MOST + 1, 2))
            running.append(text)
            started += 1
        wishes = [
            DraftWish(text.acceptance, min(MOST, text.length - text.written - 1), text.written, text.backlog)
            for text in running
        ]
        planned = economist.plan(wishes, 0, refill)
        own: list[list[float]] = []
        for text, count in zip(running, planned, strict=True):
            own.append([])
            for number in range(count):
                place = text.written + number
                p = text.chance(place, number)
                if spread is not None and 0 < p < 1:
                    # Bimodal: the token is easy or hard, p on average.
                    easy, hard = p + (1 - p) * spread, p * (1 - spread)
                    share = (p - hard) / (easy - hard)
                    p = easy if text.dice[place, 1] < share else hard
                own[-1].append(p)
        confidences = [
            [0.02 + 0.9 * p**1.5 for p in chances_] if show_confidence and chances_ else None
            for chances_ in own
        ]
        verified = economist.trim(wishes, planned, confidences, 0, refill)
        n, slots, drafting = len(running), sum(planned), sum(count > 0 for count in planned)
        rows = n + sum(verified)
        draft_s = float(truth.drafter.at(slots, drafting)) * jitter()
        target_s = float(truth.target.at(rows, n)) * jitter()
        taken_in = sum(text.backlog for text, count in zip(running, planned, strict=True) if count)
        extend_s = float(truth.extend.at(taken_in)) * jitter()
        outcomes = []
        for text, count, kept, ps, sure in zip(running, planned, verified, own, confidences, strict=True):
            accepted = 0
            while accepted < kept and text.dice[text.written + accepted, 0] < ps[accepted]:
                accepted += 1
            if count:
                outcomes.append(DraftOutcome(text.acceptance, sure, kept, accepted))
                text.backlog = 0
            text.written += accepted + 1
            text.backlog += accepted + 1
            run.tokens += accepted + 1
            run.accepted += accepted
            if run.log is not None:
                run.log.append((text.written, count))
        economist.observe(outcomes)
        economist.observe_step(StepCost(rows, n, drafting, slots, draft_s, target_s, taken_in, extend_s))
        if noise:  # what counts is the true time, not the noise
            draft_s = float(truth.drafter.at(slots, drafting))
            target_s, extend_s = float(truth.target.at(rows, n)), float(truth.extend.at(taken_in))
        run.seconds += draft_s + target_s + extend_s
        run.steps += 1
        run.drafted += slots
        run.verified += sum(verified)
        running = [text for text in running if text.written < text.length]
    return run
