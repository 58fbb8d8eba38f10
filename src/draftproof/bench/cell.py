"""One cell: a group of prompts at one batch size and temperature, in every mode, in turning order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftproof.bench.memory import forget_peak, peak_mib
from draftproof.bench.options import OFF, BenchOptions
from draftproof.bench.passes import Clock, Pass, run_pass
from draftproof.bench.prompts import BenchPrompt
from draftproof.engine import LLM, EngineOptions
from draftproof.sampling import SamplingParams


@dataclass(frozen=True)
class CellKey:
    """Which cell."""

    group: str
    batch: int
    temperature: float


@dataclass(frozen=True)
class Contender:
    """One draft mode in two engines around the same target.

    Attributes:
        mode: by name.
        prompts: an engine that keeps no prefixes, so that every prompt is processed; it is timed up to the first tokens.
        decoding: an engine with the prompts in its prefix cache, so that decoding is all there is to time.
    """

    mode: str
    prompts: LLM
    decoding: LLM

    @staticmethod
    def make(llm: LLM, mode: str, most: int) -> Contender:
        """Engines for `most` requests at once, at least."""
        drafter = None if mode == OFF else llm.drafter
        size = max(most, EngineOptions.max_num_seqs)
        return Contender(
            mode,
            llm.with_drafter(
                drafter, draft_mode=mode, options=EngineOptions(max_num_seqs=size, prefix_caching=False)
            ),
            llm.with_drafter(drafter, draft_mode=mode, options=EngineOptions(max_num_seqs=size)),
        )


@dataclass(frozen=True)
class Round:
    """One mode's part of a round.

    Attributes:
        prompts: the batch up to its first tokens, nothing cached.
        decoding: the batch to its end, prompts cached.
        peak_mib: most memory that was resident meanwhile; None where the system does not say.
    """

    prompts: Pass
    decoding: Pass
    peak_mib: float | None


@dataclass
class CellRun:
    """What has been measured of a cell so far, complete or not.

    Attributes:
        rounds: by mode.
        complete: whether all rounds of all modes are there.
    """

    key: CellKey
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    complete: bool = False

    @property
    def paired(self) -> dict[str, list[Round]]:
        """The rounds that every mode has finished, so that each has its counterparts."""
        common = min((len(rounds) for rounds in self.rounds.values()), default=0)
        return {mode: rounds[:common] for mode, rounds in self.rounds.items()}


def measure_cell(
    run: CellRun,
    contenders: Sequence[Contender],
    prompts: Sequence[BenchPrompt],
    options: BenchOptions,
    told: Callable[[], None],
    clock: Clock = time.perf_counter,
) -> None:
    """Fill in `run`; what is there when something interrupts stays there.

    Every round takes the next prompts, and the modes take turns in being first. A round before the first one is not counted:
    what comes once (compiling, paging in) is nobody's speed.

    Args:
        run: of the cell.
        contenders: the modes.
        prompts: of the group; used over and over.
        options: sizes.
        told: called after each round of each mode, the one that does not count too.
        clock: seconds.
    """
    run.rounds = {contender.mode: [] for contender in contenders}
    for number in range(-1, options.rounds):
        first = max(0, number)
        turn = first % len(contenders)
        for contender in [*contenders[turn:], *contenders[:turn]]:
            result = _round(contender, run.key, _window(prompts, first, run.key.batch), first, options, clock)
            if number >= 0:
                run.rounds[contender.mode].append(result)
            told()
    run.complete = True


def _window(prompts: Sequence[BenchPrompt], number: int, batch: int) -> list[str]:
    return [prompts[(number * batch + place) % len(prompts)].text for place in range(batch)]


def _round(
    contender: Contender, key: CellKey, texts: list[str], number: int, options: BenchOptions, clock: Clock
) -> Round:
    seeds = [options.seed + number * key.batch + place for place in range(key.batch)]
    one_token = [SamplingParams(temperature=0.0, seed=0, max_tokens=1)] * len(texts)
    whole = [_params(key.temperature, seed, options) for seed in seeds]
    forget_peak()
    prompts = run_pass(contender.prompts, texts, one_token, clock)
    run_pass(contender.decoding, texts, one_token, clock)  # leaves the prompts in the prefix cache
    decoding = run_pass(contender.decoding, texts, whole, clock)
    return Round(prompts, decoding, peak_mib())


def _params(temperature: float, seed: int, options: BenchOptions) -> SamplingParams:
    return SamplingParams(
        temperature=temperature,
        top_p=options.top_p if temperature > 0 else 1.0,
        seed=seed,
        max_tokens=options.max_tokens,
        ignore_eos=options.ignore_eos,
    )
