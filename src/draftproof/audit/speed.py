"""Promise 2 on the user's own machine: drafting as far as pays is not slower than not drafting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from draftproof.audit.interval import median_interval
from draftproof.audit.prompts import AuditPrompt, encoded
from draftproof.audit.runs import AuditRequest, drafted, run_together
from draftproof.audit.watch import Budget, Clock, Watcher, nobody
from draftproof.engine import LLM, EngineOptions, Metrics
from draftproof.engine.economics import DraftMode
from draftproof.errors import RequestError
from draftproof.models.executor import precision_of
from draftproof.sampling import SamplingParams

FLOOR = 0.97
"""The promise: the interval of the speed ratio lies at or above this. The rest is left to measuring and to trying drafts out."""
PAIRS_FOR_A_VERDICT = 15

Side = Literal["with", "without"]
State = Literal["proven", "slower", "noisy", "differs", "unmeasured"]


@dataclass(frozen=True)
class SpeedOptions:
    """What to measure.

    Attributes:
        batches: numbers of requests at once.
        pairs: measurements of both sides per batch size.
        max_tokens: most tokens of each output.
        draft_mode: the side under test.
        seed: of the first request of every run.
        temperature: of all; 0 is greedy.
        budget_s: begin no new pair after so many seconds.
    """

    batches: tuple[int, ...] = (1, 4, 16)
    pairs: int = PAIRS_FOR_A_VERDICT
    max_tokens: int = 64
    draft_mode: str = "auto"
    seed: int = 0
    temperature: float = 0.0
    budget_s: float | None = None

    def __post_init__(self) -> None:
        _check("batch", min(self.batches, default=0))
        _check("pairs", self.pairs)
        _check("max_tokens", self.max_tokens)
        mode = DraftMode.parse(self.draft_mode)
        if mode.kind == "off" or (mode.kind == "fixed" and not mode.length):
            raise RequestError(
                "DP462",
                f"draft_mode must be auto or fixed=N with N >= 1: it is held against off; got {self.draft_mode!r}",
            )


def _check(name: str, value: int) -> None:
    if value < 1:
        raise RequestError("DP462", f"{name} must be a whole number >= 1, got {value}")


@dataclass(frozen=True)
class Run:
    """One side of a pair: what came out and the seconds it took."""

    outputs: list[list[int]]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(len(tokens) for tokens in self.outputs) / self.seconds


class Measure(Protocol):
    """What a pair is made of; `EngineMeasure` is the real one."""

    def prepare(self, requests: Sequence[AuditRequest]) -> None:
        """Process the prompts on both sides, so that only decoding is left to time."""

    def run(self, side: Side, requests: Sequence[AuditRequest]) -> Run:
        """Decode the requests together on one side."""

    def drafting(self) -> Drafting:
        """What the drafted side has done since the last call."""


@dataclass(frozen=True)
class Drafting:
    """How the drafted side drafted: tokens per decode step of a sequence, and how often each draft length was chosen."""

    acceptance_length: float = 0.0
    draft_lengths: list[int] = field(default_factory=list)

    @property
    def mean_draft_length(self) -> float:
        steps = sum(self.draft_lengths)
        return sum(k * count for k, count in enumerate(self.draft_lengths)) / steps if steps else 0.0


@dataclass(frozen=True)
class SpeedRow:
    """What was found at one batch size.

    Attributes:
        batch: requests at once.
        ratios: speed with the drafter over speed without, one a pair.
        median, low, high: of the ratios, with the ends of the interval; NaN without a pair.
        coverage: of the interval.
        tokens_per_second, tokens_per_second_without: medians.
        acceptance_length, draft_lengths: of the drafted side; `draft_lengths[k]` counts steps of a sequence with k draft tokens.
        same_tokens: whether both sides gave the same tokens in every pair.
        state: ``"proven"``; ``"slower"``: the whole interval lies below the floor; ``"noisy"``: it straddles the floor;
            ``"differs"``: the outputs differ; ``"unmeasured"``: time was over before the first pair.
    """

    batch: int
    ratios: list[float]
    median: float
    low: float
    high: float
    coverage: float
    tokens_per_second: float
    tokens_per_second_without: float
    acceptance_length: float
    draft_lengths: list[int]
    same_tokens: bool
    state: State

    @property
    def mean_draft_length(self) -> float:
        return Drafting(0.0, self.draft_lengths).mean_draft_length


@dataclass(frozen=True)
class SpeedReport:
    """What was found.

    Attributes:
        model, drafter, dtype: by name.
        draft_mode: of the side under test.
        floor: what the interval's lower end is held against.
        pairs: asked for.
        method: how the interval is made.
        rows: one a batch size.
    """

    model: str
    drafter: str
    dtype: str
    draft_mode: str
    floor: float
    pairs: int
    method: str
    rows: list[SpeedRow]

    @property
    def proven(self) -> bool:
        return all(row.state == "proven" for row in self.rows)

    @property
    def verdict(self) -> str:
        """One line."""
        return f"speed: {'proven' if self.proven else 'NOT PROVEN'}: {self._reason()}{self._weak()}"

    def _reason(self) -> str:
        for state in ("differs", "slower", "unmeasured", "noisy"):  # the gravest first
            for row in self.rows:
                if row.state == state:
                    return _trouble(row, self.floor)
        worst = min(self.rows, key=lambda row: row.low)
        return (
            f"never slower than {self.floor:.2f} of the speed without drafting; the lowest interval, at batch {worst.batch}, "
            f"is {worst.low:.3f} to {worst.high:.3f} around {worst.median:.3f}"
        )

    def _weak(self) -> str:
        counted = min((len(row.ratios) for row in self.rows), default=0)
        if counted >= PAIRS_FOR_A_VERDICT:
            return ""
        return f" (weak: {counted} pairs, {PAIRS_FOR_A_VERDICT} make a verdict)"


def _trouble(row: SpeedRow, floor: float) -> str:
    interval = f"{row.low:.3f} to {row.high:.3f} around {row.median:.3f}"
    return {
        "differs": f"at batch {row.batch} the outputs differ, so speeds cannot be compared; run draftproof prove lossless",
        "slower": f"slower at batch {row.batch}: the interval is {interval}, below {floor:.2f}",
        "unmeasured": f"time was over before the first pair at batch {row.batch}",
        "noisy": f"too noisy at batch {row.batch}: the interval is {interval}, on both sides of {floor:.2f}; run more pairs",
    }[row.state]


METHOD = (
    "interleaved pairs (A B B A) in one process; ratio of decode tokens per second with over without; median with its exact "
    "95% interval from order statistics"
)


class EngineMeasure:
    """Both sides as engines in this process.

    Args:
        llm: target and drafter.
        draft_mode: of the drafted side.
        most: requests at once, at most.
        clock: seconds.
    """

    def __init__(self, llm: LLM, draft_mode: str, most: int, clock: Clock = time.perf_counter) -> None:
        options = EngineOptions(max_num_seqs=max(most, EngineOptions.max_num_seqs))
        self._engines: dict[Side, LLM] = {
            "with": drafted(llm, draft_mode, options),
            "without": drafted(llm, "off", options),
        }
        self._clock = clock
        self._seen = self._engines["with"].metrics

    def prepare(self, requests: Sequence[AuditRequest]) -> None:
        """Leave the prompts in both prefix caches."""
        for engine in self._engines.values():
            run_together(engine, [_first_token_only(request) for request in requests])

    def run(self, side: Side, requests: Sequence[AuditRequest]) -> Run:
        """Time one batch. A request that fails raises its error."""
        started = self._clock()
        results = run_together(self._engines[side], requests)
        seconds = self._clock() - started
        for result in results:
            if result.error is not None:
                raise result.error
        return Run([result.token_ids for result in results], seconds)

    def drafting(self) -> Drafting:
        """Since the last call."""
        before, now = self._seen, self._engines["with"].metrics
        self._seen = now
        return _between(before, now)


def _first_token_only(request: AuditRequest) -> AuditRequest:
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=1)
    return AuditRequest(request.prompt, request.kind, request.tokens, params)


def _between(before: Metrics, now: Metrics) -> Drafting:
    steps = now.decode_steps - before.decode_steps
    accepted = now.accepted_tokens - before.accepted_tokens
    earlier = before.draft_lengths + [0] * (len(now.draft_lengths) - len(before.draft_lengths))
    lengths = [late - early for late, early in zip(now.draft_lengths, earlier, strict=True)]
    return Drafting((steps + accepted) / steps if steps else 0.0, lengths)


def prove_speed(
    llm: LLM,
    prompts: Sequence[AuditPrompt],
    options: SpeedOptions | None = None,
    watcher: Watcher = nobody,
    *,
    measure: Measure | None = None,
    clock: Clock = time.perf_counter,
) -> SpeedReport:
    """Measure drafting against not drafting, in pairs, at several batch sizes.

    Args:
        llm: the target and the drafter under test.
        prompts: what to ask; every pair takes the next ones, over and over.
        options: how much.
        watcher: is told how far it is.
        measure: in place of the engines of this process.
        clock: seconds; for the time budget and the engines.

    Raises:
        RequestError: DP463, there is no drafter; DP462, a number is out of range; DP4xx, a prompt is not acceptable.
    """
    options = options or SpeedOptions()
    if llm.drafter is None:
        raise RequestError(
            "DP463", "prove speed compares a drafter with none: name a drafter other than 'none'"
        )
    requests = _requests(llm, prompts, options)
    if measure is None:
        measure = EngineMeasure(llm, options.draft_mode, max(options.batches), clock)
    budget = Budget(options.budget_s, clock)
    rows = []
    for index, batch in enumerate(options.batches):
        done = index * options.pairs

        def told(pair: int, batch: int = batch, done: int = done) -> None:
            watcher(f"batch {batch}", done + pair, len(options.batches) * options.pairs)

        rows.append(_at_batch(measure, requests, batch, options.pairs, budget, told))
    return SpeedReport(
        model=llm.target.name,
        drafter=llm.drafter.name,
        dtype=precision_of(llm.target),
        draft_mode=options.draft_mode,
        floor=FLOOR,
        pairs=options.pairs,
        method=METHOD,
        rows=rows,
    )


def _requests(llm: LLM, prompts: Sequence[AuditPrompt], options: SpeedOptions) -> list[AuditRequest]:
    requests = []
    for number, tokens in enumerate(encoded(llm, prompts), 1):
        params = SamplingParams(
            temperature=options.temperature,
            seed=options.seed + number,
            max_tokens=max(1, min(options.max_tokens, llm.max_model_len - len(tokens))),
        )
        requests.append(AuditRequest(number, "speed", tokens, params))
    return requests


def _at_batch(
    measure: Measure,
    requests: Sequence[AuditRequest],
    batch: int,
    pairs: int,
    budget: Budget,
    told: Callable[[int], None],
) -> SpeedRow:
    told(0)
    sides: dict[Side, list[float]] = {"with": [], "without": []}
    same = True
    if not budget.over:
        _warm_up(measure, _window(requests, 0, batch))
    for pair in range(pairs):
        if budget.over:
            break
        chosen = _window(requests, pair, batch)
        measure.prepare(chosen)
        order: tuple[Side, Side] = ("with", "without") if pair % 2 == 0 else ("without", "with")
        runs = {side: measure.run(side, chosen) for side in order}
        same = same and runs["with"].outputs == runs["without"].outputs
        for side, run in runs.items():
            sides[side].append(run.tokens_per_second)
        told(pair + 1)
    return _row(batch, sides["with"], sides["without"], measure.drafting(), same)


def _warm_up(measure: Measure, requests: Sequence[AuditRequest]) -> None:
    """A run of each side that does not count: what comes once (compiling, paging in) is nobody's speed."""
    measure.prepare(requests)
    measure.run("with", requests)
    measure.run("without", requests)
    measure.drafting()


def _window(requests: Sequence[AuditRequest], pair: int, batch: int) -> list[AuditRequest]:
    """The next `batch` requests for a pair, from the start again when they are used up."""
    return [requests[(pair * batch + index) % len(requests)] for index in range(batch)]


def _row(batch: int, with_: list[float], without: list[float], drafting: Drafting, same: bool) -> SpeedRow:
    nothing = float("nan")
    if not with_:
        return SpeedRow(
            batch, [], nothing, nothing, nothing, 0.0, nothing, nothing, 0.0, [], same, "unmeasured"
        )
    ratios = [ours / plain for ours, plain in zip(with_, without, strict=True)]
    interval = median_interval(ratios)
    return SpeedRow(
        batch=batch,
        ratios=ratios,
        median=interval.median,
        low=interval.low,
        high=interval.high,
        coverage=interval.coverage,
        tokens_per_second=median_interval(with_).median,
        tokens_per_second_without=median_interval(without).median,
        acceptance_length=drafting.acceptance_length,
        draft_lengths=drafting.draft_lengths,
        same_tokens=same,
        state=_state(interval.low, interval.high, same),
    )


def _state(low: float, high: float, same: bool) -> State:
    if not same:
        return "differs"
    if low >= FLOOR:
        return "proven"
    return "slower" if high < FLOOR else "noisy"
