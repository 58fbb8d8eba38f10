"""Ways of running the same requests: alone or together, drafted or not, in an engine of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.engine import LLM, EngineOptions, RequestResult
from draftproof.errors import DraftproofError
from draftproof.sampling import SamplingParams


@dataclass(frozen=True)
class AuditRequest:
    """One request of an audit.

    Attributes:
        prompt: which prompt, from 1.
        kind: what is asked of it, in a word or two (``"greedy"``).
        tokens: the prompt's token ids.
        params: with a seed, so that it can be repeated.
    """

    prompt: int
    kind: str
    tokens: list[int]
    params: SamplingParams


def undrafted(llm: LLM, options: EngineOptions | None = None) -> LLM:
    """The same target in an engine that never drafts."""
    return llm.with_drafter(None, draft_mode="off", options=options)


def drafted(llm: LLM, mode: str, options: EngineOptions | None = None) -> LLM:
    """The same target and drafter in an engine of their own."""
    return llm.with_drafter(llm.drafter, draft_mode=mode, options=options)


def longest_drafts(llm: LLM) -> str:
    """The draft mode that always proposes as much as the drafter can."""
    return f"fixed={llm.drafter.max_draft_tokens}" if llm.drafter is not None else "off"


def with_context_of(llm: LLM, max_model_len: int, mode: str, options: EngineOptions) -> LLM:
    """The same target and drafter in an engine with a shorter context, which may then have a very small pool."""
    shorter = min(max_model_len, llm.max_model_len)
    return llm.with_drafter(llm.drafter, draft_mode=mode, max_model_len=shorter, options=options)


def run_together(llm: LLM, requests: Sequence[AuditRequest]) -> list[RequestResult]:
    """All at once, in one batch. A request that fails while running has its error on its result.

    Raises:
        RequestError: one of them is refused before anything runs.
    """
    try:
        return llm.generate([r.tokens for r in requests], [r.params for r in requests], progress=False)
    except DraftproofError as error:
        results = [result for result in error.results if isinstance(result, RequestResult)]
        if len(results) != len(requests):
            raise
        return results


def run_alone(
    llm: LLM, requests: Sequence[AuditRequest], one_done: Callable[[], None] | None = None
) -> list[RequestResult]:
    """One after the other. Raises as `run_together`."""
    results = []
    for request in requests:
        results += run_together(llm, [request])
        if one_done is not None:
            one_done()
    return results


def left_behind(llm: LLM) -> str:
    """What an engine with nothing to do still holds, in words; empty when it holds nothing."""
    now = llm.metrics
    taken, there = now.blocks - now.free_blocks, now.running + now.waiting
    return f"{taken} blocks still taken, {there} outputs still there" if taken or there else ""


def describe(error: DraftproofError) -> str:
    """An error in a line, with its code."""
    return f"{error.code} {error.message}"
