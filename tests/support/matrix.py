"""The losslessness matrix: features of requests, situations an engine puts them into, drafters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from draftproof import LLM, RequestResult, SamplingParams
from draftproof.models.drafters.base import Drafter
from draftproof.sampling import StructuredOutputs
from support.engines import (
    Ask,
    WitnessDrafter,
    core_of,
    engine,
    preempt_in_turn,
    run_all,
    step_until_done,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["dog", "fox", "lazy"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "good": {"type": "boolean"},
    },
    "required": ["name", "size", "good"],
    "additionalProperties": False,
}
FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {
        "temperature": 0.7,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "logit_bias": {7: 3.0, 200: -50.0},
        "banned_token_ids": [11, 12],
        "min_tokens": 5,
    },
    "json": {"temperature": 1.0, "structured_outputs": StructuredOutputs(json=SCHEMA)},
    "regex": {
        "temperature": 0.0,
        "structured_outputs": StructuredOutputs(regex="(the|fox|[a-d]{2,5}| ){4,20}!"),
    },
    "stop": {"temperature": 1.0, "stop": ["th", "o", "x2"], "min_tokens": 10},
    "logprobs": {"temperature": 0.9, "top_k": 40, "logprobs": 3, "prompt_logprobs": 2},
    "n=3": {"temperature": 1.1, "min_p": 0.02, "n": 3, "logprobs": 0},
}


def make_asks(prompts: Sequence[tuple[int, ...]], outputs: Sequence[int]) -> tuple[Ask, ...]:
    """One request for each prompt, features in turn; `outputs` the most output tokens of each round of features."""
    made = []
    for place, prompt in enumerate(prompts):
        turn, index = divmod(place, len(FEATURES))
        name = list(FEATURES)[index]
        params = SamplingParams(
            **FEATURES[name], seed=100 * turn + index, max_tokens=outputs[turn], ignore_eos=turn == 1
        )
        made.append(Ask(prompt, params, name))
    return tuple(made)


class Matrix:
    """Runs requests in every situation.

    Args:
        off: the target, without a drafter.
        asks: the requests; all of them make up a batch.
        drafters: by name, made anew for every engine.
        few_blocks: a pool so small that the batch does not fit into it.
    """

    def __init__(
        self,
        off: LLM,
        asks: Sequence[Ask],
        drafters: dict[str, Callable[[], Drafter]],
        few_blocks: int,
    ) -> None:
        self.off, self.asks, self.drafters, self.few_blocks = off, asks, drafters, few_blocks
        self.situations: dict[str, Callable[[str, str], list[RequestResult]]] = {
            "alone": self._alone,
            "batch of 24": self._batch,
            "prefix hit": self._prefix_hit,
            "preempted": self._preempted,
            "chunk 16": self._chunked,
        }

    @cached_property
    def expected(self) -> list[RequestResult]:
        """Each alone, drafting off, nothing cached."""
        off = engine(self.off, None, prefix_caching=False)
        return [ask.alone(off) for ask in self.asks]

    def run(self, situation: str, drafter: str, mode: str) -> list[RequestResult]:
        """The results of all requests, in order."""
        return self.situations[situation](drafter, mode)

    def of(
        self, feature: str, results: Sequence[RequestResult]
    ) -> Iterator[tuple[RequestResult, RequestResult]]:
        """Results of one feature, each with what it should be."""
        for ask, result, reference in zip(self.asks, results, self.expected, strict=True):
            if ask.name == feature:
                yield result, reference

    def _engine(self, drafter: str, mode: str, **sizes: Any) -> LLM:
        made = self.drafters[drafter]()
        if isinstance(made, WitnessDrafter):
            for ask, result in zip(self.asks, self.expected, strict=True):
                made.learn(ask.prompt, result)
        return engine(self.off, made, mode, **sizes)

    def _alone(self, drafter: str, mode: str) -> list[RequestResult]:
        llm = self._engine(drafter, mode, prefix_caching=False)
        results = [run_all(llm, [ask])[0] for ask in self.asks]
        assert core_of(llm).metrics.drafted_tokens > 0
        return results

    def _batch(self, drafter: str, mode: str) -> list[RequestResult]:
        llm = self._engine(drafter, mode)
        running = []
        for ask in self.asks:  # one joins at every step
            running.append(ask.submit(llm))
            core_of(llm).step()
        step_until_done(llm)
        return [one.result for one in running]

    def _prefix_hit(self, drafter: str, mode: str) -> list[RequestResult]:
        llm = self._engine(drafter, mode)
        run_all(llm, self.asks)
        again = run_all(llm, self.asks)
        for ask, result in zip(self.asks, again, strict=True):
            whole = 0 if ask.params.prompt_logprobs is not None else len(ask.prompt) - 1
            assert result.cached_tokens == whole
        return again

    def _preempted(self, drafter: str, mode: str) -> list[RequestResult]:
        llm = self._engine(drafter, mode, blocks=self.few_blocks)
        results = run_all(llm, self.asks, preempt_in_turn(llm, every=1))
        assert core_of(llm).metrics.preemptions > len(self.asks) // 2
        for name in FEATURES:
            mine = [result for result, _ in self.of(name, results)]
            assert any(choice.stats.preemptions for result in mine for choice in result.choices), name
        return results

    def _chunked(self, drafter: str, mode: str) -> list[RequestResult]:
        return run_all(self._engine(drafter, mode, budget=16), self.asks)
