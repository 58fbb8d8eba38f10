"""Promise 1: the same request and seed give the same tokens with the drafter on, off or replaced."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch

from draftproof import LLM, RequestResult, SamplingParams
from draftproof.engine import StreamEvent
from support.llms import EXECUTORS, Executor, make_drafter, named, tiny_llm
from support.scripted import ScriptedDrafter
from support.tiny import random_tokens

TOKENS = 40
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "top-k": {"temperature": 1.0, "top_k": 20},
    "min-p": {"temperature": 1.0, "min_p": 0.05},
    "plain": {"temperature": 1.3},
}
PROMPTS = [random_tokens(5).tolist(), (random_tokens(9, seed=1).tolist() * 8)[:70]]


def params(sampling: str, seed: int = 11, max_tokens: int = TOKENS) -> SamplingParams:
    return SamplingParams(**SAMPLINGS[sampling], seed=seed, max_tokens=max_tokens, ignore_eos=True)


@cache
def without_drafter(kind: str, dtype: Executor, sampling: str, prompt: int) -> RequestResult:
    return tiny_llm(kind, dtype).generate(PROMPTS[prompt], params(sampling))[0]


@cache
def with_drafter(kind: str, dtype: Executor, drafter: str, block_size: int) -> LLM:
    llm = tiny_llm(kind, dtype)
    return llm.with_drafter(make_drafter(llm, drafter, block_size))


@pytest.mark.parametrize("dtype", EXECUTORS, ids=named)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("block_size", [2, 4, 8])
@pytest.mark.parametrize("drafter", ["dflash", "dflash2", "ngram"])
def test_drafting_changes_nothing(drafter: str, block_size: int, sampling: str, dtype: Executor) -> None:
    kind = "llama" if block_size != 4 else "gemma3"
    llm = with_drafter(kind, dtype, drafter, block_size)
    assert llm.row_invariant
    for index, prompt in enumerate(PROMPTS):
        expected = without_drafter(kind, dtype, sampling, index)
        came = llm.generate(prompt, params(sampling))[0]
        assert came.token_ids == expected.token_ids
        assert came.text == expected.text
        assert came.finish_reason == expected.finish_reason


@pytest.mark.parametrize("dtype", EXECUTORS, ids=named)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("period", [0, 1, 2, 3, 5])
def test_blocks_of_every_accepted_length(period: int, sampling: str, dtype: Executor) -> None:
    expected = without_drafter("llama", dtype, sampling, 0)
    script = ScriptedDrafter({tuple(PROMPTS[0]): expected.token_ids}, period, max_draft_tokens=7)
    came = tiny_llm("llama", dtype).with_drafter(script).generate(PROMPTS[0], params(sampling))[0]
    assert came.token_ids == expected.token_ids
    longest = 7 if period == 0 else period - 1
    assert max(came.stats.accepted_lengths) == longest


@pytest.mark.parametrize("kind", ["qwen3", "mistral", "gemma2", "gpt2", "olmoe"])
def test_other_architectures(kind: str) -> None:
    expected = without_drafter(kind, torch.bfloat16, "top-p", 1)
    script = ScriptedDrafter({tuple(PROMPTS[1]): expected.token_ids}, 4, max_draft_tokens=7)
    assert tiny_llm(kind, torch.bfloat16).with_drafter(script).generate(PROMPTS[1], params("top-p"))[
        0
    ].token_ids == (expected.token_ids)


@pytest.mark.parametrize("drafter", ["dflash", "ngram", None])
@pytest.mark.parametrize("dtype", EXECUTORS, ids=named)
def test_a_mixed_batch_gives_what_each_gives_alone(drafter: str | None, dtype: Executor) -> None:
    off = tiny_llm("llama", dtype)
    llm = with_drafter("llama", dtype, drafter, 8) if drafter else off
    names = list(SAMPLINGS)
    prompts = [random_tokens(3 + 7 * i, seed=i).tolist() for i in range(10)]
    asked = [params(names[i % len(names)], seed=i, max_tokens=6 + 3 * i) for i in range(10)]
    expected = [off.generate(prompt, mine)[0].token_ids for prompt, mine in zip(prompts, asked, strict=True)]
    inboxes: list[deque[StreamEvent]] = [deque() for _ in prompts]
    for prompt, mine, inbox in zip(prompts, asked, inboxes, strict=True):
        llm.loop.add(llm._request(prompt, mine, inbox))  # one joins at every step, whoever is done leaves
        llm.loop._core.step()
    while llm.loop._core.unfinished:
        llm.loop._core.step()
    results = [inbox[-1].result for inbox in inboxes]
    assert [result.token_ids for result in results if result] == expected


def test_threads_may_share_a_target() -> None:
    llm = with_drafter("llama", torch.float32, "dflash", 8)
    expected = [llm.generate(PROMPTS[0], params("plain", seed=seed))[0].token_ids for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        came = list(
            pool.map(lambda seed: llm.generate(PROMPTS[0], params("plain", seed=seed))[0].token_ids, range(4))
        )
    assert came == expected


@pytest.mark.parametrize("drafter", ["dflash", "ngram"])
def test_seeds(drafter: str) -> None:
    llm = with_drafter("llama", torch.float32, drafter, 8)
    drawn = llm.generate(PROMPTS[0], SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True))[0]
    again = SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True, seed=drawn.seed)
    assert tiny_llm().generate(PROMPTS[0], again)[0].token_ids == drawn.token_ids
    other = llm.generate(PROMPTS[0], params("plain", seed=12))[0]
    assert other.token_ids != without_drafter("llama", torch.float32, "plain", 0).token_ids


def test_greedy_equals_transformers() -> None:
    llm = tiny_llm("llama")
    from support.tiny import make_model

    reference = make_model("llama", vocab=len(llm.tokenizer))
    for prompt in PROMPTS:
        ours = llm.generate(prompt, params("greedy"))[0].token_ids
        theirs = reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert ours == up_to_first_tie(theirs.sequences[0, len(prompt) :].tolist(), theirs.logits, ours)


def up_to_first_tie(theirs: list[int], logits: tuple[torch.Tensor, ...], ours: list[int]) -> list[int]:
    """Their tokens, replaced by ours from the first position on whose top two are within 1e-4."""
    for index, row in enumerate(logits):
        best = row[0].float().topk(2).values
        if best[0] - best[1] <= 1e-4:
            return theirs[:index] + ours[index:]
    return theirs
