"""Engines stepped by hand, requests to put into them, and a drafter that testifies to what its context memory holds."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from draftproof import LLM, RequestResult, SamplingParams
from draftproof.engine import EngineOptions, StreamEvent
from draftproof.engine.core import EngineCore
from draftproof.engine.economics import CostCurve, CostTable, DraftMode, Economist
from draftproof.engine.memory import bytes_per_block
from draftproof.engine.request import Request
from draftproof.models.drafters.base import ContextUpdate, Drafter, DraftProposal, DraftRequest
from draftproof.models.kv import KEY_BLOCK
from support.llms import END, Executor, make_drafter, tiny_llm


@cache
def short_llm(max_model_len: int, kind: str = "llama", dtype: Executor = torch.float32) -> LLM:
    """A tiny `LLM` without a drafter and with a short context, so that a small pool is allowed."""
    whole = tiny_llm(kind, dtype)
    return LLM.from_parts(
        whole.target,
        whole.tokenizer,
        end_token_ids=frozenset({END}),
        draft_mode="fixed=7",
        max_model_len=max_model_len,
    )


def engine(
    off: LLM,
    drafter: Drafter | None,
    mode: str = "fixed=7",
    *,
    blocks: int | None = None,
    max_num_seqs: int = 64,
    budget: int = 512,
    prefix_caching: bool = True,
) -> LLM:
    """`off` with a drafter, in a pool of so many blocks. Mode ``auto`` runs on made-up costs, the same on every machine."""
    memory = None if blocks is None else blocks * bytes_per_block(off.target, drafter)
    options = EngineOptions(max_num_seqs, budget, memory, prefix_caching)
    llm = off.with_drafter(drafter, draft_mode="fixed=7" if mode == "auto" else mode, options=options)
    if mode == "auto" and drafter is not None:
        # In place of what would be measured on this machine.
        economist = llm._economist
        economist.mode, economist.costs = DraftMode.parse("auto"), made_up_costs()
    return llm


def made_up_costs() -> CostTable:
    """Under which drafting pays where something is accepted, and does not where nothing is."""
    return CostTable(
        CostCurve([1, 8, 64, 512], [0.020, 0.022, 0.030, 0.100]),
        CostCurve([1, 64], [0.002, 0.004]),
        CostCurve([1, 64], [0.0002, 0.001]),
    )


def core_of(llm: LLM) -> EngineCore:
    return llm.loop._core


def economist_of(llm: LLM) -> Economist:
    return core_of(llm).economist


@dataclass
class Running:
    """A request in an engine, and what has come of it."""

    request: Request
    events: deque[StreamEvent]

    @property
    def result(self) -> RequestResult:
        result = self.events[-1].result
        assert result is not None, "the request has not ended"
        return result


@dataclass(frozen=True)
class Ask:
    """A request to be made any number of times."""

    prompt: tuple[int, ...]
    params: SamplingParams
    name: str = ""

    def submit(self, llm: LLM, priority: int = 0, request_id: str | None = None) -> Running:
        events: deque[StreamEvent] = deque()
        request = llm.prepare(
            list(self.prompt), self.params, events.append, priority=priority, request_id=request_id
        )
        llm.loop.add(request)
        return Running(request, events)

    def alone(self, off: LLM) -> RequestResult:
        """What it gives without drafting, alone, in an engine that has never seen it."""
        return off.generate(list(self.prompt), self.params)[0]


def step_until_done(llm: LLM, between: Callable[[int], object] | None = None, most: int = 20_000) -> int:
    """Step until nothing is left; `between` is called before each step. Returns the number of steps."""
    core = core_of(llm)
    for count in range(most):
        if not core.unfinished:
            return count
        if between is not None:
            between(count)
        core.step()
    raise AssertionError(f"{core.unfinished} requests are still unfinished after {most} steps")


def run_all(
    llm: LLM, asks: Iterable[Ask], between: Callable[[int], object] | None = None
) -> list[RequestResult]:
    """All at once; the engine must be clean afterwards."""
    running = [ask.submit(llm) for ask in asks]
    step_until_done(llm, between)
    for one in running:
        check_events(one.events)
    assert_clean(llm)
    return [one.result for one in running]


def preempt_in_turn(llm: LLM, every: int = 4) -> Callable[[int], None]:
    """For `step_until_done`: takes the memory of one running sequence after the other, in any state it may be in."""
    scheduler = core_of(llm)._scheduler

    def between(step: int) -> None:
        if step % every == every - 1 and scheduler.running:
            scheduler.preempt(scheduler.running[step // every % len(scheduler.running)])

    return between


def assert_clean(llm: LLM) -> None:
    """Nothing runs, nothing is held, and the cache's books are in order."""
    core = core_of(llm)
    assert core.unfinished == 0
    assert core._scheduler.idle
    assert core.memory.cache.num_referenced == 0
    core.memory.cache.check(tables=[])


def check_events(events: Iterable[StreamEvent]) -> None:
    """A request's events tell the same as its result, and end as they should."""
    listed = list(events)
    result = listed[-1].result
    assert result is not None
    assert [event.finished for event in listed] == [False] * (len(listed) - 1) + [True]
    for choice in result.choices:
        mine = [event for event in listed if event.index == choice.index]
        assert mine, f"choice {choice.index} gave no event"
        assert [event.finish_reason for event in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == choice.finish_reason
        assert "".join(event.text for event in mine) == choice.text
        if result.error is None:
            assert [token for event in mine for token in event.token_ids] == choice.token_ids
            if choice.logprobs is not None:
                assert [one for event in mine for one in event.logprobs or []] == choice.logprobs


def outcome(result: RequestResult) -> dict[str, Any]:
    """All of a result that must not depend on how it was computed. Floats are compared to the last bit."""
    assert result.error is None, result.error
    return {
        "choices": [
            (one.token_ids, one.text, one.finish_reason, one.seed, one.logprobs) for one in result.choices
        ],
        "prompt_logprobs": result.prompt_logprobs,
    }


@dataclass
class _Witnessed:
    pages: torch.Tensor | None
    table: list[int]
    length: int
    own: list[torch.Tensor] = field(default_factory=list)


class WitnessDrafter:
    """Proposes what drafting-free decoding gave, with errors on purpose, and checks its context memory on every call.

    Its "context keys and values" are the first few context features of each token. They depend on the tokens up to there alone,
    so whatever block they come out of, after a prefix hit, a fork, a copy, a preemption, they must be what they were when
    first seen after the same tokens: never zeros, never a neighbour's.

    Args:
        scripts: ``(prompt, seed) -> output``; nothing is proposed for others.
        period: an error at every output position that is one less than a multiple of it; 0 for none.
        max_draft_tokens: most per proposal.
    """

    name = "witness"
    tap_layer_ids = (1, 3)
    WIDTH = 4
    page_bytes = KEY_BLOCK * WIDTH * 4

    def __init__(
        self,
        scripts: dict[tuple[tuple[int, ...], int], list[int]] | None = None,
        period: int = 4,
        max_draft_tokens: int = 7,
    ) -> None:
        self.scripts = scripts if scripts is not None else {}
        self.period, self.max_draft_tokens = period, max_draft_tokens
        self.seen: dict[int, bytes] = {}
        self.checked = 0

    def learn(self, prompt: Sequence[int], result: RequestResult) -> None:
        for choice in result.choices:
            self.scripts[tuple(prompt), choice.seed] = choice.token_ids

    def new_pages(self, num_pages: int) -> torch.Tensor:
        return torch.zeros(num_pages, KEY_BLOCK, self.WIDTH)

    def copy_page(self, pages: torch.Tensor, source: int, destination: int) -> None:
        pages[destination] = pages[source]

    def new_state(
        self, pages: torch.Tensor | None = None, table: list[int] | None = None, length: int = 0
    ) -> _Witnessed:
        return _Witnessed(pages, table if table is not None else [], length)

    def extend(self, updates: Sequence[ContextUpdate]) -> None:
        for update in updates:
            state: _Witnessed = update.state
            assert update.start == state.length, "context was skipped or taken in twice"
            assert update.features is not None
            marks = update.features[:, : self.WIDTH].float()
            for row in marks:
                if state.pages is None:
                    state.own.append(row)
                else:
                    state.pages[state.table[state.length // KEY_BLOCK], state.length % KEY_BLOCK] = row
                state.length += 1

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> DraftProposal:
        self._testify(request)
        prompt = tuple(request.tokens[: len(request.tokens) - request.output_position])
        at = request.output_position
        script = self.scripts.get((prompt, request.sampling.seed), [])
        tokens = []
        for index, token in enumerate(script[at : at + request.num_draft_tokens], start=at):
            wrong = self.period and (index + 1) % self.period == 0
            tokens.append((token - 1 if token > 10 else token + 1) if wrong else token)
        confidence = torch.full((len(tokens),), 0.75)
        return DraftProposal(torch.tensor(tokens, dtype=torch.int64), confidence)

    def _testify(self, request: DraftRequest) -> None:
        state: _Witnessed = request.state
        length = len(request.tokens) - 1
        assert state.length == length, "the drafter's context does not end at the anchor"
        if state.pages is None:
            return
        pages = [state.table[index] for index in range(-(-length // KEY_BLOCK))]
        marks = state.pages[pages].reshape(-1, self.WIDTH)[:length].numpy()
        prefix = 0
        for token, mark in zip(request.tokens, marks, strict=False):
            prefix = hash((prefix, token))
            known = self.seen.setdefault(prefix, mark.tobytes())
            assert known == mark.tobytes(), "the drafter's context is not what these tokens give"
        self.checked += length


def tiny_drafter(kind: str, off: LLM) -> Drafter:
    """``dflash`` (random weights), ``ngram`` or ``witness``."""
    return WitnessDrafter() if kind == "witness" else make_drafter(off, kind, 8)


def random_prompt(count: int, rng: random.Random, vocab: int = 320) -> tuple[int, ...]:
    """Ids from 5 up: no special tokens."""
    return tuple(rng.randrange(5, vocab) for _ in range(count))


def bits(values: Iterable[float]) -> list[int]:
    """Floats as integers, for messages that show differences in the last bit."""
    return np.asarray(list(values), dtype=np.float64).view(np.int64).tolist()
