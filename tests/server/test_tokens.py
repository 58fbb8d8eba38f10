"""`/tokenize` and `/detokenize`: what the completion routes would see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.llms import tiny_llm
from support.serving import drafting_llm, serving

TEXT = "The quick 👍🏽 fox"
MESSAGES = [{"role": "user", "content": TEXT}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(drafting_llm()) as address:
        yield address


def post(url: str, path: str, **body: Any) -> Any:
    answer = httpx.post(url + path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_text_goes_to_tokens_and_back(url: str) -> None:
    tokens = post(url, "/tokenize", prompt=TEXT, return_token_strs=True)
    assert tokens["tokens"] == tiny_llm().tokenizer(TEXT)["input_ids"]
    assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), 512)
    assert len(tokens["token_strs"]) == tokens["count"]
    assert post(url, "/detokenize", tokens=tokens["tokens"]) == {"prompt": TEXT}


def test_nothing_and_very_much_can_be_tokenised(url: str) -> None:
    assert post(url, "/tokenize", prompt="")["tokens"] == []
    assert post(url, "/detokenize", tokens=[]) == {"prompt": ""}
    assert post(url, "/tokenize", prompt="fox " * 2000)["count"] > 512


def test_a_conversation_has_the_tokens_that_chat_sees(url: str) -> None:
    tokens = post(url, "/tokenize", messages=MESSAGES)["tokens"]
    chat = post(url, "/v1/chat/completions", messages=MESSAGES, max_tokens=1, return_token_ids=True)
    assert chat["prompt_token_ids"] == tokens
    text = post(url, "/detokenize", tokens=tokens)["prompt"]
    assert text.endswith("<|im_start|>assistant\n")
    closed = post(url, "/tokenize", messages=MESSAGES, add_generation_prompt=False)["tokens"]
    assert tokens[: len(closed)] == closed
    assert len(closed) < len(tokens)
    thinking = post(url, "/tokenize", messages=MESSAGES, chat_template_kwargs={"thinking": True})["tokens"]
    assert len(thinking) > len(tokens)


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/tokenize", {}, "DP636", "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "DP636", "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "DP631", "prompt"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "DP637", "messages.0.content"),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"tokenize": True}}, "DP639",
         "chat_template_kwargs.tokenize"),
        ("/tokenize", {"messages": MESSAGES, "add_generation_prompt": True, "continue_final_message": True}, "DP636",
         "continue_final_message"),
        ("/detokenize", {}, "DP637", "tokens"),
        ("/detokenize", {"tokens": [1, 10**9]}, "DP403", "tokens.1"),
        ("/detokenize", {"tokens": [-1]}, "DP631", "tokens.0"),
        ("/detokenize", {"tokens": ["a"]}, "DP631", "tokens.0"),
        ("/detokenize", {"tokens": "a"}, "DP631", "tokens"),
    ],
)  # fmt: skip
def test_faults_are_told_by_field(url: str, path: str, body: dict[str, Any], code: str, param: str) -> None:
    answer = httpx.post(url + path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error["message"]
