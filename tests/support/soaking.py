"""A soak: random requests in random engines, aborted at random, every answer held against the same request's solo run."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from draftproof import LLM, RequestResult, SamplingParams
from draftproof.models.drafters.base import Drafter
from draftproof.sampling import StructuredOutputs
from support.engines import Ask, Running, WitnessDrafter, assert_clean, check_events, core_of, engine, outcome

EPOCH = 30
"""Requests that one engine gets before another one, with other sizes and another drafter, takes over."""
CHECK_EVERY = 5
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "bb", "c d"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["kind", "size"],
    "additionalProperties": False,
}


@dataclass
class SoakReport:
    """What a soak did. `wrong` and `leaks` are what it must not find."""

    requests: int = 0
    outputs_compared: int = 0
    aborted: int = 0
    failed_as_alone: int = 0
    output_tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    evictions: int = 0
    block_copies: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    audits: int = 0
    engines: int = 0
    wrong: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)


class Asks:
    """A limited set of distinct requests, so that each one's solo run serves many comparisons.

    Args:
        off: runs the solo runs, without drafter; its tokenizer makes the prompts.
        text: what prompts are cut from.
        rng: draws them.
        count: how many.
        longest: most tokens of prompt and output together.
        most_output: most output tokens.
    """

    def __init__(
        self, off: LLM, text: str, rng: random.Random, count: int, longest: int, most_output: int
    ) -> None:
        self._solo = engine(off, None, prefix_caching=False)
        self._tokens = tuple(off.tokenizer(text, add_special_tokens=False)["input_ids"]) * 4
        self._vocab = off.target.info.vocab_size
        self._rng, self._longest, self._most_output = rng, longest, most_output
        self._known: dict[str, RequestResult] = {}
        self.all: list[Ask] = []
        for index in range(count):
            self.all.append(self._draw(index))

    def alone(self, ask: Ask) -> RequestResult:
        if ask.name not in self._known:
            running = ask.submit(self._solo)
            while core_of(self._solo).unfinished:
                core_of(self._solo).step()
            self._known[ask.name] = running.result
        return self._known[ask.name]

    def _draw(self, index: int) -> Ask:
        rng = self._rng
        max_tokens = rng.choice([1, 2, 5, rng.randint(6, self._most_output), self._most_output])
        most = self._longest - max_tokens
        edge = rng.choice([1, 2, 63, 64, 65, 127, 128, 129, rng.randint(1, most), rng.randint(1, most)])
        prompt = self._prompt(min(edge, most))
        return Ask(prompt, SamplingParams(**self._fields(max_tokens, index)), str(index))

    def _prompt(self, length: int) -> tuple[int, ...]:
        rng = self._rng
        kind = rng.randrange(4 if self.all else 3)
        if kind == 3:  # a turn that follows on another one's answer
            before = rng.choice(self.all)
            answered = (*before.prompt, *self.alone(before).token_ids)
            return answered[:length] + self._random(max(0, length - len(answered)))
        if kind == 0:  # a beginning that others have too
            shared = rng.randint(0, length)
            return self._tokens[:shared] + self._random(length - shared)
        if kind == 1:  # repeats itself: n-grams are of use
            return (self._random(rng.randint(1, 9)) * length)[:length]
        start = rng.randint(0, len(self._tokens) - length)
        return self._tokens[start : start + length]

    def _random(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(5, self._vocab - 5) for _ in range(count))

    def _fields(self, max_tokens: int, index: int) -> dict[str, Any]:
        rng = self._rng
        some: dict[str, Any] = {"max_tokens": max_tokens, "seed": 1000 + index}
        some["temperature"] = rng.choice([0.0, 0.0, 0.6, 1.0, 1.4])
        options: list[dict[str, Any]] = [
            {"top_p": 0.9},
            {"top_k": rng.choice([1, 5, 40])},
            {"min_p": 0.05},
            {"repetition_penalty": rng.choice([0.8, 1.2])},
            {"presence_penalty": 0.7},
            {"frequency_penalty": rng.choice([-0.4, 0.5])},
            {"logit_bias": {rng.randrange(self._vocab): rng.choice([-100.0, 4.0]) for _ in range(3)}},
            {"banned_token_ids": [rng.randrange(self._vocab) for _ in range(9)]},
            {"min_tokens": rng.randint(0, max_tokens)},
            {"ignore_eos": True},
            {"stop": rng.sample(["the", "a", "o", "e ", "th", "x1", "\n"], 2), "min_tokens": max_tokens // 3},
            {"stop": ["e"], "include_stop_str_in_output": True},
            {"stop_token_ids": [rng.randrange(self._vocab) for _ in range(6)]},
            {"skip_special_tokens": False},
            {"n": rng.choice([2, 2, 3, 4])},
            {"logprobs": rng.choice([0, 1, 5])},
            {"prompt_logprobs": rng.choice([0, 2])},
        ]
        for option in rng.sample(options, rng.randint(0, 6)):
            some.update(option)
        if rng.random() < 0.2:
            some["structured_outputs"] = rng.choice(
                [
                    StructuredOutputs(json=SCHEMA),
                    StructuredOutputs(regex="[a-e ]{3,30}(x|y)+z"),
                    StructuredOutputs(choice=["a cat", "a dog", "another dog and a cat"]),
                    StructuredOutputs(json_object=True),
                ]
            )
            some.pop("banned_token_ids", None)
        return some


class Soak:
    """Drives engines until enough requests have been answered.

    Args:
        off: the target, without a drafter.
        asks: what may be asked.
        drafters: made anew for every engine.
        rng: decides everything.
        blocks: sizes of pools to choose from; the smallest must hold one context.
        aborts: share of the requests that are aborted, some steps after they came.
    """

    def __init__(
        self,
        off: LLM,
        asks: Asks,
        drafters: list[Callable[[], Drafter | None]],
        rng: random.Random,
        blocks: list[int],
        aborts: float = 0.2,
    ) -> None:
        self.off, self.asks, self.drafters, self.rng = off, asks, drafters, rng
        self.blocks, self.aborts = blocks, aborts
        self.report = SoakReport()

    def run(self, requests: int, progress: Callable[[SoakReport], object] | None = None) -> SoakReport:
        while self.report.requests < requests:
            self._epoch(min(EPOCH, requests - self.report.requests), progress)
        return self.report

    def _epoch(self, requests: int, progress: Callable[[SoakReport], object] | None) -> None:
        rng = self.rng
        drafter = rng.choice(self.drafters)()
        llm = engine(
            self.off,
            drafter,
            rng.choice(["fixed=7", "fixed=3", "auto"]),
            blocks=rng.choice(self.blocks),
            max_num_seqs=rng.choice([4, 8, 16, 24]),
            budget=rng.choice([1, 16, 64, 512]),
            prefix_caching=rng.random() < 0.8,
        )
        self.report.engines += 1
        running: list[tuple[Ask, Running]] = []
        leaving: dict[int, list[Running]] = {}
        submitted = steps = 0
        while submitted < requests or running:
            for _ in range(rng.choice([0, 0, 1, 3])):
                if submitted < requests and len(running) < 40:
                    running.append(self._submit(llm, drafter))
                    submitted += 1
                    if rng.random() < self.aborts:
                        leaving.setdefault(steps + rng.choice([0, 1, 5, 20, 60]), []).append(running[-1][1])
            for one in leaving.pop(steps, []):
                llm.loop.abort(one.request.request_id)
            core_of(llm).step()
            steps += 1
            if steps % CHECK_EVERY == 0:
                self._audit(llm)
            ended = [pair for pair in running if pair[1].events and pair[1].events[-1].finished]
            for pair in ended:
                running.remove(pair)
                self._compare(*pair)
            if steps > 5_000:
                self.report.leaks.append(f"{len(running)} requests never end")
                break
            if progress is not None and ended:
                progress(self.report)
        self._note(llm)

    def _submit(self, llm: LLM, drafter: Drafter | None) -> tuple[Ask, Running]:
        ask = self.rng.choice(self.asks.all)
        if isinstance(drafter, WitnessDrafter):
            drafter.learn(ask.prompt, self.asks.alone(ask))
        return ask, ask.submit(llm, priority=self.rng.choice([0, 0, 0, -1, 1]))

    def _audit(self, llm: LLM) -> None:
        core = core_of(llm)
        tables = [one.memory.table for one in core._scheduler.running if one.memory is not None]
        try:
            core.memory.cache.check(tables)
            assert all(one.memory is None for one in core._scheduler.waiting)
        except AssertionError as error:
            self.report.leaks.append(str(error))
        self.report.audits += 1

    def _compare(self, ask: Ask, running: Running) -> None:
        report = self.report
        report.requests += 1
        expected, came = self.asks.alone(ask), running.result
        try:
            check_events(running.events)
            if expected.error is not None and not _aborted(came):
                report.failed_as_alone += 1
                assert came.error is not None
                assert came.error.code == expected.error.code
            elif _aborted(came):
                report.aborted += 1
                _check_prefix(came, expected)
            else:
                report.outputs_compared += len(came.choices)
                assert outcome(came) == outcome(expected)
        except AssertionError as error:
            report.wrong.append(
                f"{ask.name} {ask.params} {traceback.format_exc()}: {error}: {came} instead of {expected}"
            )
        report.output_tokens += sum(len(one.token_ids) for one in came.choices)

    def _note(self, llm: LLM) -> None:
        report, metrics = self.report, core_of(llm).metrics
        try:
            assert_clean(llm)
        except AssertionError as error:
            report.leaks.append(str(error))
        for name in ("steps", "preemptions", "prefix_hit_tokens", "evictions", "block_copies"):
            setattr(report, name, getattr(report, name) + getattr(metrics, name))
        report.drafted_tokens += metrics.drafted_tokens
        report.accepted_tokens += metrics.accepted_tokens


def _aborted(result: RequestResult) -> bool:
    return any(choice.finish_reason == "abort" for choice in result.choices)


def _check_prefix(came: RequestResult, expected: RequestResult) -> None:
    """What an aborted request has must be the beginning of what it would have had."""
    assert came.error is None
    for mine, whole in zip(came.choices, expected.choices, strict=True):
        count = len(mine.token_ids)
        if expected.error is None:
            assert mine.token_ids == whole.token_ids[:count]
            assert whole.text.startswith(mine.text)
            if mine.logprobs is not None and whole.logprobs is not None:
                assert mine.logprobs == whole.logprobs[:count]
            if mine.finish_reason != "abort":
                assert (mine.finish_reason, count) == (whole.finish_reason, len(whole.token_ids))
    if came.prompt_logprobs is not None and expected.prompt_logprobs is not None:
        assert came.prompt_logprobs == expected.prompt_logprobs[: len(came.prompt_logprobs)]
