"""Requests that say how to be drafted, by a length or a prediction: their tokens are the same, and so are everybody else's."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from draftproof import LLM, RequestResult, SamplingParams
from draftproof.engine import EngineOptions
from draftproof.engine.prediction import LONGEST, PredictedText, PredictionReader
from draftproof.errors import RequestError
from draftproof.sampling import StructuredOutputs
from support.llms import EXECUTORS, Executor, make_drafter, named, tiny_llm
from support.tiny import random_tokens

TOKENS = 40
PROMPT = (random_tokens(9, seed=1).tolist() * 8)[:70]
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.9, "top_p": 0.95},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.4},
    "several": {"temperature": 1.0, "n": 3},
    "grammar": {"temperature": 0.9, "structured_outputs": StructuredOutputs(regex="[a-f]{30,60}")},
    "logprobs": {"temperature": 0.9, "logprobs": 2},
}
PREDICTIONS = ["right", "half", "wrong", "longer", "shifted"]
MODES = ["auto", "fixed=3", "fixed=0", "off"]


def params(kind: str, **more: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 5, "max_tokens": TOKENS, "ignore_eos": True, **REQUESTS[kind], **more})


@cache
def plain(kind: str) -> RequestResult:
    return tiny_llm().generate(PROMPT, params(kind))[0]


def predicted(kind: str, how: str) -> list[int]:
    right = plain(kind).token_ids
    return {
        "right": right,
        "half": [*right[:10], 5, *right[14:30], 7, 7, *right[31:]],
        "wrong": random_tokens(60, seed=9).tolist(),
        "longer": right + random_tokens(400, seed=3).tolist(),
        "shifted": random_tokens(20, seed=4).tolist() + right,
    }[how]


@cache
def drafted(drafter: str | None, mode: str, small: bool = False) -> LLM:
    llm = tiny_llm()
    options = EngineOptions(max_num_seqs=6, max_num_batched_tokens=40) if small else None
    made = None if drafter is None else make_drafter(llm, drafter, 8)
    return llm.with_drafter(made, draft_mode=mode, options=options)


def same(came: RequestResult, expected: RequestResult) -> None:
    assert [one.token_ids for one in came.choices] == [one.token_ids for one in expected.choices]
    assert [one.text for one in came.choices] == [one.text for one in expected.choices]
    assert [one.finish_reason for one in came.choices] == [one.finish_reason for one in expected.choices]


@pytest.mark.parametrize("drafter", [None, "dflash", "ngram"])
@pytest.mark.parametrize("kind", REQUESTS)
def test_predictions_change_nothing(kind: str, drafter: str | None) -> None:
    llm = drafted(drafter, "fixed=3")
    for how in PREDICTIONS:
        came = llm.generate(PROMPT, params(kind, prediction=predicted(kind, how)))[0]
        same(came, plain(kind))
        stats = came.stats
        if how == "right":
            assert stats.predicted_accepted > 20
            assert stats.predicted_rejected <= (kind == "grammar")  # the form's end token is no draft
            assert stats.target_steps < 8 or kind == "grammar"
        if how == "half":
            assert stats.predicted_accepted > 0
            assert stats.predicted_rejected > 0
        assert stats.predicted_accepted <= stats.accepted_tokens <= len(came.token_ids)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("executor", EXECUTORS, ids=named)
def test_predictions_change_nothing_on_any_executor(executor: Executor, kind: str) -> None:
    llm = tiny_llm(kind, executor)
    twin = llm.with_drafter(make_drafter(llm, "dflash", 8), draft_mode="fixed=3")
    for asked in ("greedy", "sampled"):
        expected = llm.with_drafter(None).generate(PROMPT, params(asked))[0]
        right = expected.token_ids
        predictions = [right, [*right[:10], 5, *right[14:30], 7, 7, *right[31:]], right[::-1]]
        came = [twin.generate(PROMPT, params(asked, prediction=one))[0] for one in predictions]
        together = twin.generate([PROMPT] * 3, [params(asked, prediction=one) for one in predictions])
        for result in (*came, *together):
            same(result, expected)
        assert came[0].stats.predicted_accepted > 20


@pytest.mark.parametrize("mode", MODES)
def test_lengths_and_predictions_in_one_batch(mode: str) -> None:
    llm = drafted("dflash", mode, small=True)
    asked, expected = [], []
    for kind in REQUESTS:
        for more in (
            {},
            {"draft_length": 0},
            {"draft_length": 5},
            {"draft_length": "auto"},
            {"prediction": predicted(kind, "half")},
            {"prediction": predicted(kind, "right"), "draft_length": 2},
            {"prediction": predicted(kind, "right"), "draft_length": 0},
        ):
            asked.append(params(kind, **more))
            expected.append(plain(kind))
    results = llm.generate([PROMPT] * len(asked), asked)
    for given, came, wanted in zip(asked, results, expected, strict=True):
        same(came, wanted)
        total = came.stats_total
        if given.draft_length == 0 or mode == "off":
            assert total.drafted_tokens == 0
        if given.draft_length == 5 and mode != "off":
            assert total.drafted_tokens > 3 * total.target_steps
        assert total.decode_tokens == sum(one.stats.decode_tokens for one in came.choices)
    assert llm.metrics.free_blocks == llm.metrics.blocks


@pytest.mark.parametrize("how", PREDICTIONS)
def test_stop_strings_and_limits_within_a_prediction(how: str) -> None:
    text = plain("sampled").text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    for more in ({"stop": stop}, {"max_tokens": 7}, {"max_tokens": 1}):
        expected = tiny_llm().generate(PROMPT, params("sampled", **more))[0]
        came = drafted("dflash", "auto").generate(
            PROMPT, params("sampled", prediction=predicted("sampled", how), **more)
        )[0]
        same(came, expected)


def test_predictions_through_preemption() -> None:
    llm = tiny_llm()
    tight = llm.with_drafter(
        make_drafter(llm, "dflash", 8),
        max_model_len=256,
        options=EngineOptions(max_num_seqs=8, kv_cache_memory=_memory_of_few_blocks(llm)),
    )
    long = {"max_tokens": 120}
    prompts = [random_tokens(40, seed=i).tolist() for i in range(6)]
    expected = [llm.generate(p, params("sampled", **long))[0] for p in prompts]
    asked = [
        params("sampled", prediction=[*one.token_ids[:60], 3, *one.token_ids[60:]], **long)
        for one in expected
    ]
    for came, wanted in zip(tight.generate(prompts, asked), expected, strict=True):
        same(came, wanted)
    assert tight.metrics.preemptions > 0
    assert tight.metrics.free_blocks == tight.metrics.blocks


def _memory_of_few_blocks(llm: LLM) -> int:
    from draftproof.engine.memory import bytes_per_block

    return 9 * bytes_per_block(llm.target, make_drafter(llm, "dflash", 8))


def test_the_drafter_drafts_as_well_after_a_prediction() -> None:
    """Features of tokens that a prediction brought reach the drafter: the next request draws the same drafts from the cache."""
    llm = tiny_llm()
    right = plain("greedy").token_ids
    longer = PROMPT + right
    fresh = llm.with_drafter(make_drafter(llm, "dflash", 8), draft_mode="fixed=7")
    expected = fresh.generate(longer, params("greedy"))[0]
    used = llm.with_drafter(make_drafter(llm, "dflash", 8), draft_mode="fixed=7")
    used.generate(PROMPT, params("greedy", prediction=right))
    came = used.generate(longer, params("greedy"))[0]
    same(came, expected)
    assert came.cached_tokens > len(PROMPT)
    assert came.stats.drafted_tokens == expected.stats.drafted_tokens
    assert came.stats.accepted_lengths == expected.stats.accepted_lengths


def test_economics_learns_nothing_from_predictions() -> None:
    llm = drafted("dflash", "auto")
    before = llm._economist.acceptance_by_position()
    came = llm.generate(PROMPT, params("greedy", prediction=predicted("greedy", "right")))[0]
    assert came.stats.predicted_accepted > 20
    assert llm._economist.acceptance_by_position() == before


def test_a_prediction_may_be_text() -> None:
    text = plain("greedy").text
    came = drafted(None, "auto").generate(PROMPT, params("greedy", prediction=text))[0]
    same(came, plain("greedy"))


def test_a_reader_finds_its_place_again() -> None:
    reader = PredictionReader(PredictedText(range(10, 60)))
    assert reader.propose([1], 1, LONGEST) == list(range(10, 25))
    assert reader.propose([1, 10, 11], 1, 4) == [12, 13, 14, 15]
    assert reader.propose([1, 10, 11, 7], 1, LONGEST) == []
    assert reader.propose([1, 10, 11, 7, 30, 31, 32], 1, 3) == [33, 34, 35]
    reader.note(3, 0)
    assert reader.propose([1, 10, 11, 7, 30, 31, 32, 8, 40, 41, 42], 1, 9) == []
    assert reader.propose([1, 10, 11, 7, 30, 31, 32, 8, 40, 41, 42, 43], 1, 9) == [44, 45]


@pytest.mark.parametrize("value", [-1, 1.5, True, "off", [1]])
def test_bad_draft_lengths_are_refused(value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(draft_length=value)
    assert refused.value.code == "DP690"


@pytest.mark.parametrize("value", [3, ["a"], [1, -2], {"a": 1}, b"x", "\ud800"])
def test_bad_predictions_are_refused(value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(prediction=value)
    assert refused.value.code == "DP691"


def test_a_prediction_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        tiny_llm().generate(PROMPT, SamplingParams(prediction=[10**6]))
    assert refused.value.code == "DP691"
