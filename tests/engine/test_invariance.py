"""A request's tokens and log-probabilities, to the last bit, do not depend on what else the engine is doing."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from draftproof import LLM, SamplingParams
from draftproof.models.linear import Route
from draftproof.models.rows import Segment
from draftproof.models.target import Target, TargetOptions
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
from support.llms import EXECUTORS, Executor, named
from support.tiny import make_model

CONTEXT = 256
DTYPES = EXECUTORS
DRAFTERS = [None, "dflash", "witness"]


@cache
def asks() -> tuple[Ask, ...]:
    """32 requests of different lengths, half of them sampled, all with log-probabilities."""
    rng = random.Random(3)
    lengths = [1 + 5 * index for index in range(32)]
    rng.shuffle(lengths)
    lengths[0], lengths[15], lengths[31] = 63, 64, 65
    made = []
    for index, length in enumerate(lengths):
        params = SamplingParams(
            temperature=0.9 if index % 2 else 0.0,
            top_p=0.95,
            seed=index,
            max_tokens=12 + index % 9,
            ignore_eos=True,
            logprobs=2,
            prompt_logprobs=1 if index % 5 == 0 else None,
        )
        made.append(Ask(random_prompt(length, rng), params))
    return tuple(made)


@cache
def alone(dtype: Executor) -> tuple[dict[str, object], ...]:
    off = engine(short_llm(CONTEXT, dtype=dtype), None, prefix_caching=False)
    return tuple(outcome(ask.alone(off)) for ask in asks())


@cache
def scripts() -> dict[tuple[tuple[int, ...], int], list[int]]:
    off = short_llm(CONTEXT, dtype=torch.float32)
    return {(ask.prompt, ask.params.seed or 0): ask.alone(off).token_ids for ask in asks()}


def build(dtype: Executor, drafter: str | None, **sizes: int | bool | None) -> LLM:
    off = short_llm(CONTEXT, dtype=dtype)
    made = None if drafter is None else tiny_drafter(drafter, off)
    if isinstance(made, WitnessDrafter):
        made.scripts = scripts()  # of float32: often wrong for bfloat16, which is as good
    return engine(off, made, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES, ids=named)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_in_a_batch_of_32(dtype: Executor, drafter: str | None) -> None:
    """First, last and in the middle; together and one after the other."""
    assert short_llm(CONTEXT, dtype=dtype).row_invariant
    llm = build(dtype, drafter)
    for order in (range(32), range(31, -1, -1)):
        results = run_all(llm, [asks()[index] for index in order])
        for index, result in zip(order, results, strict=True):
            assert outcome(result) == alone(dtype)[index], f"request {index}"


@pytest.mark.parametrize("dtype", DTYPES, ids=named)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("budget", [1, 16, 512])
def test_however_the_prompt_is_cut(dtype: Executor, drafter: str | None, budget: int) -> None:
    llm = build(dtype, drafter, budget=budget, prefix_caching=False)
    some = range(0, 32, 8 if budget == 1 else 4)
    results = run_all(llm, [asks()[index] for index in some])
    for index, result in zip(some, results, strict=True):
        assert outcome(result) == alone(dtype)[index]


@pytest.mark.parametrize("dtype", DTYPES, ids=named)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_prefix_cached_or_not(dtype: Executor, drafter: str | None) -> None:
    llm = build(dtype, drafter)
    for index in range(0, 32, 3):
        ask = asks()[index]
        for _ in range(2):
            [result] = run_all(llm, [ask])
            assert outcome(result) == alone(dtype)[index]
        whole = ask.params.prompt_logprobs is None
        assert result.cached_tokens == (len(ask.prompt) - 1 if whole else 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=named)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preempted_or_not(dtype: Executor, drafter: str | None, prefix_caching: bool) -> None:
    llm = build(dtype, drafter, blocks=16, prefix_caching=prefix_caching)
    running = [ask.submit(llm) for ask in asks()[::2]]
    step_until_done(llm, preempt_in_turn(llm, every=2))
    assert core_of(llm).metrics.preemptions >= 5
    for one, expected in zip(running, alone(dtype)[::2], strict=True):
        assert outcome(one.result) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=named)
def test_rows_of_the_target_are_those_of_solo_runs(dtype: Executor) -> None:
    """32 sequences of different lengths in one pass of the target, logits and features, bit for bit."""
    target = short_llm(CONTEXT, dtype=dtype).target
    prompts = [torch.tensor(ask.prompt) for ask in asks()]
    candidates = [torch.tensor(random_prompt(1 + index % 8, random.Random(index))) for index in range(32)]
    solo = []
    for prompt, block in zip(prompts, candidates, strict=True):
        kv = target.new_sequence()
        first = target.forward([Segment(kv, prompt, 0)], (0, 3))
        kv.commit_to(len(prompt))
        second = target.forward([Segment(kv, block, 0)], (0, 3))
        solo.append((first, second))
    kvs = [target.new_sequence() for _ in prompts]
    for turn, tokens in enumerate((prompts, candidates)):
        order = list(range(32)) if turn == 0 else list(range(31, -1, -1))
        whole = target.forward([Segment(kvs[index], tokens[index], 0) for index in order], (0, 3))
        at = 0
        for index in order:
            rows = slice(at, at + len(tokens[index]))
            assert whole.features is not None
            assert torch.equal(whole.logits[rows], solo[index][turn].logits)
            assert torch.equal(whole.features[rows], solo[index][turn].features)
            at = rows.stop
            kvs[index].commit_to(kvs[index].length + len(tokens[index]))


def test_identical_requests_side_by_side() -> None:
    """Prompts alike in one batch: they may share blocks while they run, and must not notice."""
    ask = Ask(asks()[31].prompt * 2, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    llm = build(torch.float32, "witness")
    expected = outcome(ask.alone(engine(short_llm(CONTEXT), None)))["choices"][0][:3]
    running = []
    for _ in range(5):
        running.append(ask.submit(llm))
        core_of(llm).step()
        core_of(llm).step()
    step_until_done(llm)
    assert [outcome(one.result)["choices"][0][:3] for one in running] == [expected] * 5
    assert [one.result.cached_tokens for one in running][-1] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("compiled", [True, False])
def test_on_tiles_and_with_plain_attention(dtype: torch.dtype, compiled: bool) -> None:
    """What the engine falls back to where packed linears or the compiled kernel are not to be had."""
    whole = short_llm(CONTEXT, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        make_model("llama", dtype, vocab=len(whole.tokenizer)).save_pretrained(folder)
        options = TargetOptions(dtype=str(dtype).removeprefix("torch."), device="cpu", route=Route.TILES)
        target = Target.load(Path(folder), "llama", options)
    target._compiled = target._compiled and compiled
    off = LLM.from_parts(target, whole.tokenizer, draft_mode="fixed=7", max_model_len=CONTEXT)
    assert off.row_invariant
    some = asks()[:12]
    expected = [outcome(ask.alone(off)) for ask in some]
    llm = engine(off, tiny_drafter("dflash", off), blocks=12)
    assert [outcome(one) for one in run_all(llm, some, preempt_in_turn(llm, every=4))] == expected
