"""Models that think: marks that are special tokens, thoughts that the template opens, and what is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import pytest
import torch

from draftproof import LLM
from draftproof.engine.chat_options import ChatOptions
from draftproof.server.output_parser import OutputParser
from draftproof.server.reasoning import ReasoningFormat, as_opened, detect_reasoning
from draftproof.server.tools.formats import of_tokenizer, tool_format
from draftproof.server.tools.plan import plan_tools
from support.llms import END
from support.serving import serving
from support.tiny import make_target
from support.tiny_tokenizers import tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is not defined %}{% elif enable_thinking %}<think>\n"
    "{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
HELLO = [{"role": "user", "content": "hi"}]


def thinking_llm(special: bool) -> LLM:
    """A tiny model whose marks are single tokens, special ones or not."""
    tokenizer = deepcopy(tiny_tokenizer("byte_level"))
    marks = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    tokenizer.add_tokens(marks, special_tokens=special)
    tokenizer.chat_template = TEMPLATE
    target = make_target("llama", torch.float32, vocab=len(tokenizer))
    return LLM.from_parts(target, tokenizer, end_token_ids=frozenset({END}), draft_mode="fixed=3")


@pytest.fixture(scope="module", params=[True, False], ids=["special", "plain"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, LLM]]:
    llm = thinking_llm(request.param)
    with serving(llm.with_drafter("ngram")) as url:
        yield url, llm


def format_of(llm: LLM) -> ReasoningFormat:
    found = detect_reasoning(llm.tokenizer)
    assert found is not None
    return found


def grammar(llm: LLM, opened: bool) -> dict[str, str]:
    """Makes the model think four letters and answer four others."""
    start, end = (llm.tokenizer.convert_tokens_to_ids(mark) for mark in ("<think>", "</think>"))
    first = "" if opened else f"<[{start}]> "
    return {
        "grammar": f"%llguidance {{}}\nstart: {first}THOUGHT <[{end}]> ANSWER\nTHOUGHT: /[ab]{{4}}/\nANSWER: /[cd]{{4}}/\n"
    }


def chat(url: str, **body: Any) -> Any:
    sent = {"messages": HELLO, "max_tokens": 24, "seed": 5, **body}
    answer = httpx.post(url + "/v1/chat/completions", json=sent, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("opened", [False, True])
def test_thoughts_are_told_apart_and_counted(served: tuple[str, LLM], opened: bool) -> None:
    url, llm = served
    body: dict[str, Any] = {"structured_outputs": grammar(llm, opened), "return_token_ids": True}
    if opened:
        body["chat_template_kwargs"] = {"enable_thinking": True}
    answer = chat(url, **body).json()
    message = answer["choices"][0]["message"]
    assert set(message["reasoning_content"]) <= set("ab")
    assert len(message["reasoning_content"]) == 4
    assert set(message["content"]) <= set("cd")
    assert len(message["content"]) == 4
    ids = answer["choices"][0]["token_ids"]
    thought = ids.index(llm.tokenizer.convert_tokens_to_ids("</think>")) + 1
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": thought}

    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = chat(url, **body, **options).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == message["reasoning_content"]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    for name in ("completion_tokens", "completion_tokens_details"):
        assert chunks[-1]["usage"][name] == answer["usage"][name]


def test_a_template_that_closes_the_thought_leaves_none(served: tuple[str, LLM]) -> None:
    url, _ = served
    body = {
        "chat_template_kwargs": {"enable_thinking": False},
        "structured_outputs": {"regex": "[cd]{4}"},
    }
    answer = chat(url, **body).json()
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert len(answer["choices"][0]["message"]["content"]) == 4
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("content", "inside"), [("<think>so", True), ("<think>so</think>Well", False), ("Well", False)]
)
def test_a_continued_message_may_be_inside_a_thought(content: str, inside: bool) -> None:
    llm = thinking_llm(False)
    messages = [*HELLO, {"role": "assistant", "content": content}]
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    assert as_opened(format_of(llm), llm, messages, options).starts_inside is inside


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("opened", [True, False])
def test_calls_that_must_come_may_follow_thoughts(special: bool, opened: bool) -> None:
    llm = thinking_llm(special)
    variables = {"enable_thinking": True} if opened else {}
    reasoning = as_opened(format_of(llm), llm, HELLO, ChatOptions(template_kwargs=variables))
    assert reasoning.starts_inside is opened
    function = {
        "name": "go",
        "parameters": {"type": ["object"], "properties": {"on": {"type": "boolean"}}, "required": ["on"]},
    }
    tools = [{"type": "function", "function": function}]
    format_ = of_tokenizer(tool_format("hermes"), llm.tokenizer)
    assert format_.start_id is not None
    assert format_.hidden is special
    plan = plan_tools(format_, tools, "required", None, reasoning)
    compiled = llm._intake._grammars.compile(plan.structured_outputs)
    call = '<tool_call>\n{"name": "go", "arguments": {"on": true}}\n</tool_call>'
    for lead, fits in (("" if opened else "<think>", True), ("", opened)):
        state = compiled.new_state()
        said = f"{lead}I could call it</think>\n{call}"
        tokens = llm.tokenizer(said, add_special_tokens=False)["input_ids"]
        assert all(state.take(token) for token in tokens) == fits, (lead, said)
    parser = OutputParser(reasoning, plan)
    parser.feed(("" if opened else "<think>") + "hm</think>\n" + call, finished=True)
    assert parser.called
