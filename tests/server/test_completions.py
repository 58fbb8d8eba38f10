"""`/v1/completions` over HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from draftproof import SamplingParams
from support.llms import tiny_llm
from support.serving import drafting_llm, serving

PATH = "/v1/completions"
TEXT = "The quick brown 😀 fox"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(drafting_llm()) as address:
        yield address


def complete(url: str, **body: Any) -> Any:
    answer = httpx.post(url + PATH, json={"prompt": TEXT, "max_tokens": 10, "seed": 5, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(url: str, **body: Any) -> list[dict[str, Any]]:
    sent = {"prompt": TEXT, "max_tokens": 10, "seed": 5, "stream": True, **body}
    answer = httpx.post(url + PATH, json=sent, timeout=60)
    assert answer.status_code == 200, answer.text
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event[6:]) for event in events[:-2]]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def alone(prompt: Any = TEXT, **options: Any) -> Any:
    return tiny_llm().generate(
        prompt, SamplingParams(**{"temperature": 1.0, "max_tokens": 10, "seed": 5, **options})
    )[0]


def test_an_answer_in_one_piece(url: str) -> None:
    answer, expected = complete(url), alone()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "text": expected.text,
        "logprobs": None,
        "finish_reason": expected.finish_reason,
        "stop_reason": None,
    }
    assert answer["usage"]["completion_tokens"] == 10
    assert len(complete(url, max_tokens=None)["choices"][0]["text"]) > 0
    assert complete(url, max_tokens=None)["usage"]["completion_tokens"] <= 16


def test_a_stream_adds_up_to_the_answer(url: str) -> None:
    chunks = stream(url, stream_options={"include_usage": True})
    assert text_of(chunks) == alone().text
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 10)


@pytest.mark.parametrize("streamed", [False, True])
def test_several_prompts_of_both_kinds_with_several_choices(url: str, streamed: bool) -> None:
    prompts = ["The quick", "brown fox jumps"]
    ids = [tiny_llm().tokenizer(prompt)["input_ids"] for prompt in prompts]
    expected = [choice.text for prompt in prompts for choice in alone(prompt, n=2).choices]
    for asked in (prompts, ids):
        if streamed:
            chunks = stream(url, prompt=asked, n=2, stream_options={"include_usage": True})
            texts = [text_of(chunks, index) for index in range(4)]
            usage = chunks[-1]["usage"]
        else:
            answer = complete(url, prompt=asked, n=2)
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
            texts, usage = [choice["text"] for choice in answer["choices"]], answer["usage"]
        assert texts == expected
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (sum(map(len, ids)), 40)


def test_one_list_of_ids_is_one_prompt(url: str) -> None:
    ids = tiny_llm().tokenizer(TEXT)["input_ids"]
    answer = complete(url, prompt=ids, return_token_ids=True)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["prompt_token_ids"]) == (alone().text, ids)
    assert choice["token_ids"] == alone().token_ids


def test_the_prompt_is_echoed(url: str) -> None:
    expected = TEXT + alone().text
    assert complete(url, echo=True)["choices"][0]["text"] == expected
    assert text_of(stream(url, echo=True)) == expected
    ids = tiny_llm().tokenizer(TEXT)["input_ids"]
    assert complete(url, prompt=ids, echo=True)["choices"][0]["text"] == expected


def test_logprobs_have_the_shape_of_openai(url: str) -> None:
    expected = alone(logprobs=2)
    (choice,) = complete(url, logprobs=2)["choices"]
    shown = choice["logprobs"]
    assert {name: len(values) for name, values in shown.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), 10
    )
    for value, known in zip(shown["token_logprobs"], expected.logprobs, strict=True):
        assert math.isclose(value, known.logprob, abs_tol=1e-5)
    assert all(2 <= len(top) <= 3 for top in shown["top_logprobs"])
    chunks = stream(url, logprobs=2)
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    for name, values in shown.items():
        together = [value for part in streamed for value in part[name]]
        if name in ("tokens", "text_offset"):
            assert together == values
    none = complete(url, logprobs=0)["choices"][0]["logprobs"]
    assert [len(top) for top in none["top_logprobs"]] == [1] * 10


def test_offsets_point_at_the_tokens(url: str) -> None:
    (choice,) = complete(url, logprobs=0, echo=True, max_tokens=40)["choices"]
    shown = choice["logprobs"]
    for token, offset in zip(shown["tokens"], shown["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert (
                choice["text"][offset:].startswith(token) or "\ufffd" in choice["text"][offset : offset + 2]
            )
    assert shown["text_offset"] == sorted(shown["text_offset"])


@pytest.mark.parametrize("limit", [0, 1])
def test_a_prompt_can_be_scored(url: str, limit: int) -> None:
    answer = complete(url, echo=True, logprobs=1, max_tokens=limit)
    (choice,) = answer["choices"]
    ids = tiny_llm().tokenizer(TEXT)["input_ids"]
    shown = choice["logprobs"]
    assert len(shown["tokens"]) == len(ids) + limit
    assert (shown["token_logprobs"][0], shown["top_logprobs"][0]) == (None, None)
    assert choice["text"] == TEXT + (alone(max_tokens=1).text if limit else "")
    assert (answer["usage"]["completion_tokens"], choice["finish_reason"]) == (limit, "length")
    expected = alone(max_tokens=1, prompt_logprobs=1).prompt_logprobs
    for value, known in zip(shown["token_logprobs"][1:], expected[1:], strict=False):
        assert math.isclose(value, known.logprob, abs_tol=1e-5)


def test_nothing_is_streamed_of_an_output_of_no_tokens(url: str) -> None:
    chunks = stream(
        url, echo=True, max_tokens=0, return_token_ids=True, stream_options={"include_usage": True}
    )
    assert text_of(chunks) == TEXT
    assert all("token_ids" not in choice for chunk in chunks for choice in chunk["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] == 0


def test_fields_of_other_engines_reach_the_sampler(url: str) -> None:
    allowed = [70, 71, 72]
    answer = complete(url, allowed_token_ids=allowed, ignore_eos=True, return_token_ids=True, min_tokens=10)
    assert set(answer["choices"][0]["token_ids"]) <= set(allowed)
    biased = complete(url, logit_bias={"70": 100}, return_token_ids=True)
    assert biased["choices"][0]["token_ids"] == [70] * 10
    for fields in ({"top_k": 1}, {"temperature": 0}, {"top_p": 1e-9}, {"min_p": 1}):
        assert complete(url, **fields)["choices"][0]["text"] == alone(temperature=0).text
    assert complete(url, repetition_penalty=1.7)["choices"][0]["text"] == alone(repetition_penalty=1.7).text
    penalties = {"presence_penalty": 1.5, "frequency_penalty": 1.0}
    assert complete(url, **penalties)["choices"][0]["text"] == alone(**penalties).text


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": ""}, "DP401", "prompt"),
        ({"prompt": [1, 10**6]}, "DP403", "prompt"),
        ({"prompt": "fox " * 2000}, "DP402", "prompt"),
        ({"prompt": ["a"] * 200}, "DP638", "prompt"),
        ({"max_tokens": 0}, "DP425", "max_tokens"),
        ({"logprobs": True}, "DP631", "logprobs"),
        ({"logprobs": 21}, "DP631", "logprobs"),
        ({"suffix": "x"}, "DP633", "suffix"),
        ({"messages": []}, "DP633", "messages"),
        ({"stream": True, "echo": True, "logprobs": 1}, "DP636", "logprobs"),
    ],
)
def test_faults_are_told_by_field(url: str, fields: dict[str, Any], code: str, param: str) -> None:
    answer = httpx.post(url + PATH, json={"prompt": "hello", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error["message"]


def test_a_fault_in_one_of_the_prompts_ends_the_others(url: str) -> None:
    ids = [[5, 6, 7], [5, 10**6]]
    answer = httpx.post(url + PATH, json={"prompt": ids, "max_tokens": 400})
    assert answer.status_code == 400
