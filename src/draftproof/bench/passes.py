"""One batch through an engine, with the moment of every commit, and what can be read off that."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from draftproof.bench.work import Work, work_between
from draftproof.engine import LLM, RequestResult, StreamEvent
from draftproof.engine.request import Request
from draftproof.sampling import SamplingParams

Clock = Callable[[], float]
"""Seconds from some fixed moment on."""


@dataclass(frozen=True)
class Arrival:
    """Tokens that came together.

    Attributes:
        seconds: after the batch was handed in.
        tokens: how many.
    """

    seconds: float
    tokens: int


@dataclass(frozen=True)
class Pass:
    """What one batch was asked and gave. Lists have an entry a request.

    Attributes:
        prompt_tokens: tokens of each prompt.
        cached_tokens: those among them that the prefix cache had.
        outputs: tokens of each output.
        arrivals: when they came.
        seconds: from handing in the batch to its last token.
        work: what the engine did meanwhile.
    """

    prompt_tokens: list[int]
    cached_tokens: list[int]
    outputs: list[list[int]]
    arrivals: list[list[Arrival]]
    seconds: float
    work: Work

    @property
    def first_token_seconds(self) -> list[float]:
        """Time to first token."""
        return [mine[0].seconds for mine in self.arrivals if mine]

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """Prompt tokens really processed, over the time until every request had its first token."""
        computed = sum(self.prompt_tokens) - sum(self.cached_tokens)
        last = max(self.first_token_seconds, default=0.0)
        return computed / last if last > 0 else None

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding: tokens that came after everybody's first, over the time from there to the end. None where none came."""
        start = max(self.first_token_seconds, default=0.0)
        after = sum(one.tokens for mine in self.arrivals for one in mine if one.seconds > start)
        end = max((mine[-1].seconds for mine in self.arrivals if mine), default=0.0)
        return after / (end - start) if after and end > start else None

    @property
    def gaps(self) -> list[float]:
        """Inter-token latency as a reader has it: seconds between one arrival of a request and the next."""
        return [
            later.seconds - earlier.seconds for mine in self.arrivals for earlier, later in pairwise(mine)
        ]

    @property
    def seconds_per_token(self) -> list[float]:
        """Mean time of each token after the first arrival, of every request that had more than one."""
        return [
            (mine[-1].seconds - mine[0].seconds) / sum(one.tokens for one in mine[1:])
            for mine in self.arrivals
            if len(mine) > 1
        ]


@dataclass
class _Receiver:
    """Stamps one request's events. `started` is set when the batch is handed in."""

    clock: Clock
    started: float = 0.0
    arrivals: list[Arrival] = field(default_factory=list)
    result: RequestResult | None = None

    def __call__(self, event: StreamEvent) -> None:
        if event.token_ids:
            self.arrivals.append(Arrival(self.clock() - self.started, len(event.token_ids)))
        if event.result is not None:
            self.result = event.result


def run_pass(
    llm: LLM,
    texts: Sequence[str | list[int]],
    params: Sequence[SamplingParams],
    clock: Clock = time.perf_counter,
) -> Pass:
    """Run a batch to its end.

    Args:
        llm: an engine with nothing else to do.
        texts: what to ask, each as a user's message where the model has a chat template; token ids are taken as they are.
        params: one for each.
        clock: seconds.

    Raises:
        RequestError: DP4xx, a prompt is not acceptable.
        DraftproofError: the first request that failed, its own error.
    """
    receivers = [_Receiver(clock) for _ in texts]
    requests = [
        _request(llm, text, mine, receiver)
        for text, mine, receiver in zip(texts, params, receivers, strict=True)
    ]
    before = llm.metrics
    started = clock()
    try:
        for request, receiver in zip(requests, receivers, strict=True):
            receiver.started = started
            llm.loop.add(request)
        while llm.loop.step():
            pass
        seconds = clock() - started
    finally:
        # After an interrupt; nothing happens to what has ended.
        for request in requests:
            llm.loop.abort(request.request_id)
    results = [_sound(receiver.result) for receiver in receivers]
    return Pass(
        prompt_tokens=[len(result.prompt_token_ids) for result in results],
        cached_tokens=[result.cached_tokens for result in results],
        outputs=[result.token_ids for result in results],
        arrivals=[receiver.arrivals for receiver in receivers],
        seconds=seconds,
        work=work_between(before, llm.metrics),
    )


def _request(llm: LLM, text: str | list[int], params: SamplingParams, receiver: _Receiver) -> Request:
    if isinstance(text, str) and getattr(llm.tokenizer, "chat_template", None):
        return llm.prepare(None, params, receiver, messages=[{"role": "user", "content": text}])
    return llm.prepare(text, params, receiver)


def _sound(result: RequestResult | None) -> RequestResult:
    assert result is not None
    if result.error is not None:
        raise result.error
    return result
