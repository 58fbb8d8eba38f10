"""Promises 1 and 3 as a matrix: every feature, in every situation an engine can put a request into, with every drafter.

Tokens, text, finish reason and log-probabilities must be those of the same request alone, without drafting, bit for bit.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from draftproof import LLM, RequestResult, SamplingParams
from draftproof.sampling import StructuredOutputs
from support.engines import (
    Ask,
    WitnessDrafter,
    core_of,
    engine,
    outcome,
    preempt_in_turn,
    random_prompt,
    run_all,
    short_llm,
    step_until_done,
    tiny_drafter,
)
from support.tiny_tokenizers import TEXT

CONTEXT = 192
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
    "regex": {"temperature": 0.0, "structured_outputs": StructuredOutputs(regex="(the|fox|[a-d]{2,5}| ){4,20}!")},
    "stop": {"temperature": 1.0, "stop": ["th", "o", "x2"], "min_tokens": 10},
    "logprobs": {"temperature": 0.9, "top_k": 40, "logprobs": 3, "prompt_logprobs": 2},
    "n=3": {"temperature": 1.1, "min_p": 0.02, "n": 3, "logprobs": 0},
}
DRAFTERS = ("dflash", "ngram", "witness")
ROUNDS = 3
"""Requests of each feature: 24 in all. Prompts of the first round end just before, at and after a block's edge."""


@cache
def asks() -> tuple[Ask, ...]:
    rng = random.Random(5)
    text = tuple(short_llm(CONTEXT).tokenizer(TEXT)["input_ids"])
    made = []
    for turn in range(ROUNDS):
        for index, (name, fields) in enumerate(FEATURES.items()):
            if turn == 0:
                prompt = (text * 2)[: 61 + index]
            elif turn == 1:
                prompt = (random_prompt(7, rng) * 12)[: 30 + 5 * index]  # n-grams have something to find
            else:
                prompt = random_prompt(3 + 9 * index, rng)
            long = 70 if turn == 1 else 24
            params = SamplingParams(**fields, seed=100 * turn + index, max_tokens=long, ignore_eos=turn == 1)
            made.append(Ask(prompt, params, name))
    return tuple(made)


@cache
def expected() -> tuple[RequestResult, ...]:
    """Each alone, drafting off, nothing cached."""
    off = engine(short_llm(CONTEXT), None, prefix_caching=False)
    return tuple(ask.alone(off) for ask in asks())


def llm_with(drafter: str, mode: str, **sizes: Any) -> LLM:
    made = tiny_drafter(drafter, short_llm(CONTEXT))
    if isinstance(made, WitnessDrafter):
        for ask, result in zip(asks(), expected(), strict=True):
            made.learn(ask.prompt, result)
    return engine(short_llm(CONTEXT), made, mode, **sizes)


def alone(drafter: str, mode: str) -> list[RequestResult]:
    llm = llm_with(drafter, mode, prefix_caching=False)
    results = [run_all(llm, [ask])[0] for ask in asks()]
    assert core_of(llm).metrics.drafted_tokens > 0
    return results


def batch(drafter: str, mode: str) -> list[RequestResult]:
    llm = llm_with(drafter, mode)
    running = []
    for ask in asks():  # one joins at every step
        running.append(ask.submit(llm))
        core_of(llm).step()
    step_until_done(llm)
    return [one.result for one in running]


def prefix_hit(drafter: str, mode: str) -> list[RequestResult]:
    llm = llm_with(drafter, mode)
    run_all(llm, asks())
    again = run_all(llm, asks())
    for ask, result in zip(asks(), again, strict=True):
        whole = 0 if ask.params.prompt_logprobs is not None else len(ask.prompt) - 1
        assert result.cached_tokens == whole
    return again


def preempted(drafter: str, mode: str) -> list[RequestResult]:
    llm = llm_with(drafter, mode, blocks=13)
    results = run_all(llm, asks(), preempt_in_turn(llm, every=2))
    assert core_of(llm).metrics.preemptions > len(asks()) // 2
    for name in FEATURES:
        mine = [r for ask, r in zip(asks(), results, strict=True) if ask.name == name]
        assert any(choice.stats.preemptions for result in mine for choice in result.choices), name
    return results


def chunked(drafter: str, mode: str) -> list[RequestResult]:
    return run_all(llm_with(drafter, mode, budget=16), asks())


SITUATIONS = {
    "alone": alone,
    "batch of 24": batch,
    "prefix hit": prefix_hit,
    "preempted": preempted,
    "chunk 16": chunked,
}
CASES = [(situation, drafter, "fixed=7") for situation in SITUATIONS for drafter in DRAFTERS] + [
    ("batch of 24", "witness", "auto"),
    ("preempted", "dflash", "auto"),
]


@cache
def came(situation: str, drafter: str, mode: str) -> list[RequestResult]:
    return SITUATIONS[situation](drafter, mode)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(("situation", "drafter", "mode"), CASES)
def test_nothing_changes_the_answer(situation: str, drafter: str, mode: str, feature: str) -> None:
    results = came(situation, drafter, mode)
    for ask, result, reference in zip(asks(), results, expected(), strict=True):
        if ask.name == feature:
            assert outcome(result) == outcome(reference)


def test_the_matrix_is_worth_something() -> None:
    """Features do something, outputs end in different ways, drafts are accepted and rejected."""
    by_name = {name: [r for a, r in zip(asks(), expected(), strict=True) if a.name == name] for name in FEATURES}
    assert len({tuple(r.token_ids) for r in expected()}) == len(asks())
    assert {r.finish_reason for r in by_name["json"] + by_name["stop"] + by_name["regex"]} >= {"stop"}
    assert all(len({tuple(c.token_ids) for c in r.choices}) == 3 for r in by_name["n=3"])
    for drafter, least in (("witness", 0.3), ("ngram", 0.01)):
        results = came("batch of 24", drafter, "fixed=7")
        drafted = sum(c.stats.drafted_tokens for r in results for c in r.choices)
        kept = sum(c.stats.accepted_tokens for r in results for c in r.choices)
        assert least * drafted < kept < drafted
