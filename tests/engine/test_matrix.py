"""Promises 1 and 3 as a matrix: every feature, in every situation an engine can put a request into, with every drafter.

Tokens, text, finish reason and log-probabilities must be those of the same request alone, without drafting, bit for bit.
`bench/matrix.py` runs the same on a real model.
"""

from __future__ import annotations

import random
from functools import cache

import pytest

from draftproof import RequestResult
from support.engines import outcome, random_prompt, short_llm, tiny_drafter
from support.matrix import FEATURES, Matrix, make_asks
from support.tiny_tokenizers import TEXT

CONTEXT = 192
DRAFTERS = ("dflash", "ngram", "witness")
SITUATIONS = ("alone", "batch of 24", "prefix hit", "preempted", "chunk 16")
CASES = [(situation, drafter, "fixed=7") for situation in SITUATIONS for drafter in DRAFTERS] + [
    ("batch of 24", "witness", "auto"),
    ("preempted", "dflash", "auto"),
]


@cache
def matrix() -> Matrix:
    """24 requests. Prompts of the first round end just before, at and after a block's edge."""
    rng = random.Random(5)
    off = short_llm(CONTEXT)
    text = tuple(off.tokenizer(TEXT)["input_ids"]) * 2
    prompts = [text[: 61 + index] for index in range(8)]
    prompts += [(random_prompt(7, rng) * 12)[: 30 + 5 * index] for index in range(8)]  # for n-grams
    prompts += [random_prompt(3 + 9 * index, rng) for index in range(8)]
    drafters = {name: lambda name=name: tiny_drafter(name, off) for name in DRAFTERS}  # type: ignore[misc]
    return Matrix(off, make_asks(prompts, (24, 70, 24)), drafters, few_blocks=13)


@cache
def came(situation: str, drafter: str, mode: str) -> list[RequestResult]:
    return matrix().run(situation, drafter, mode)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(("situation", "drafter", "mode"), CASES)
def test_nothing_changes_the_answer(situation: str, drafter: str, mode: str, feature: str) -> None:
    for result, reference in matrix().of(feature, came(situation, drafter, mode)):
        assert outcome(result) == outcome(reference)


def test_the_matrix_is_worth_something() -> None:
    """Features do something, outputs end in different ways, drafts are accepted and rejected."""
    expected = matrix().expected
    by_name = {name: [one for one, _ in matrix().of(name, expected)] for name in FEATURES}
    assert len({tuple(one.token_ids) for one in expected}) == 24
    assert {one.finish_reason for name in ("json", "stop", "regex") for one in by_name[name]} >= {"stop"}
    assert all(len({tuple(choice.token_ids) for choice in one.choices}) == 3 for one in by_name["n=3"])
    for drafter, least in (("witness", 0.3), ("ngram", 0.01)):
        choices = [choice for one in came("batch of 24", drafter, "fixed=7") for choice in one.choices]
        drafted = sum(choice.stats.drafted_tokens for choice in choices)
        kept = sum(choice.stats.accepted_tokens for choice in choices)
        assert least * drafted < kept < drafted
