"""Requests as they come over the wire: taken, or refused by a coded error that names the field; none breaks anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import AsyncEngine
from draftproof.errors import DraftproofError, ServerError, explanation
from draftproof.sampling import SamplingParams
from draftproof.server.app import create_app
from draftproof.server.protocol import (
    ChatRequest,
    CompletionRequest,
    checked_messages,
    listed_prompts,
    openapi_body,
)
from draftproof.server.protocol.body import parse_object, validated
from draftproof.server.protocol.refused import CHAT, COMPLETIONS, drop_refused
from draftproof.server.sampling import chat_params, completion_params
from draftproof.server.settings import ServerSettings
from support.serving import drafting_llm, serving

HELLO = [{"role": "user", "content": "hello"}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(drafting_llm()) as address:
        yield address


def refusal(body: dict[str, Any], chat: bool = True) -> ServerError:
    """The error that a body ends in before it reaches the engine."""
    with pytest.raises(ServerError) as caught:
        taken(body, chat)
    return caught.value


def taken(body: dict[str, Any], chat: bool = True) -> SamplingParams:
    body = json.loads(json.dumps(body))
    if chat:
        request = validated(ChatRequest, drop_refused(body, CHAT))
        checked_messages(request.messages)
        return chat_params(request, 512, 1.0)
    completion = validated(CompletionRequest, drop_refused(body, COMPLETIONS))
    listed_prompts(completion.prompt)
    return completion_params(completion, 1.0)


def fault(body: dict[str, Any]) -> DraftproofError | None:
    try:
        assert isinstance(taken(body), SamplingParams)
    except DraftproofError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "line 1, column 1"),
        (b"{'prompt': 1}", "column 2"),
        (b'{"prompt": "a",}', "line 1"),
        (b"[1]", "got an array"),
        (b"null", "got null"),
        (b'"text"', "got a string"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
        (b'{"prompt": "\\ud83d"}', "half a surrogate pair"),
        (b'{"\\ude00": 1}', "half a surrogate pair"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(ServerError, match=said) as caught:
        parse_object(raw)
    assert caught.value.code == "DP630"


def test_whole_pairs_and_a_mark_in_front_are_read() -> None:
    assert parse_object(b'\xef\xbb\xbf{"prompt": "\\ud83d\\ude00"}') == {"prompt": "😀"}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temprature": 1}, "DP632", "temprature"),
        ({"stream_options": {"usage": True}}, "DP632", "stream_options.usage"),
        ({"speculative": {"draft_len": 3}}, "DP632", "speculative.draft_len"),
        ({"stream": "true"}, "DP631", "stream"),
        ({"stream": 1}, "DP631", "stream"),
        ({"model": 7}, "DP631", "model"),
        ({"logprobs": 3}, "DP631", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "DP631", "top_logprobs"),
        ({"top_logprobs": 2}, "DP636", "top_logprobs"),
        ({"prompt_logprobs": -1}, "DP631", "prompt_logprobs"),
        ({"temperature": -1}, "DP420", "temperature"),
        ({"temperature": "0.5"}, "DP420", "temperature"),
        ({"temperature": float("nan")}, "DP420", "temperature"),
        ({"top_p": 0}, "DP421", "top_p"),
        ({"top_k": 1.5}, "DP422", "top_k"),
        ({"min_p": 2}, "DP423", "min_p"),
        ({"seed": 2**64}, "DP424", "seed"),
        ({"max_tokens": 0}, "DP425", "max_tokens"),
        ({"max_completion_tokens": 0}, "DP425", "max_completion_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 5}, "DP636", "max_completion_tokens"),
        ({"stop": ["a", ""]}, "DP426", "stop.1"),
        ({"stop": {"a": 1}}, "DP426", "stop"),
        ({"stop": ["x"] * 65}, "DP631", "stop"),
        ({"stop_token_ids": [-1]}, "DP427", "stop_token_ids.0"),
        ({"ignore_eos": 1}, "DP428", "ignore_eos"),
        ({"repetition_penalty": 0}, "DP433", "repetition_penalty"),
        ({"frequency_penalty": 3}, "DP434", "frequency_penalty"),
        ({"presence_penalty": -3}, "DP434", "presence_penalty"),
        ({"logit_bias": {"x": 1}}, "DP435", "logit_bias"),
        ({"logit_bias": {"5": 101}}, "DP435", "logit_bias.5"),
        ({"logit_bias": [1]}, "DP435", "logit_bias"),
        ({"allowed_token_ids": []}, "DP436", "allowed_token_ids"),
        ({"min_tokens": 9, "max_tokens": 5}, "DP437", "min_tokens"),
        ({"n": 0}, "DP438", "n"),
        ({"response_format": "json"}, "DP631", "response_format"),
        ({"response_format": {"type": "xml"}}, "DP631", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "DP637", "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "DP637",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 3}}},
            "DP445",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "a", "schema": {}}}},
            "DP636",
            "response_format.json_schema",
        ),
        ({"structured_outputs": {}}, "DP444", "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "DP444", "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "DP445", "structured_outputs.json"),
        ({"structured_outputs": {"choice": [""]}}, "DP444", "structured_outputs.choice.0"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "DP636",
            "structured_outputs",
        ),
        ({"prediction": "text"}, "DP631", "prediction"),
        ({"prediction": {"type": "content", "content": 3}}, "DP631", "prediction.content"),
        ({"prediction": {"type": "content"}}, "DP637", "prediction.content"),
        ({"speculative": {"draft_length": -1}}, "DP690", "speculative.draft_length"),
        ({"speculative": {"draft_length": "fast"}}, "DP690", "speculative.draft_length"),
        ({"speculative": {"draft_length": True}}, "DP690", "speculative.draft_length"),
        ({"service_tier": "flex"}, "DP631", "service_tier"),
        ({"store": True}, "DP631", "store"),
        ({"functions": []}, "DP633", "functions"),
        ({"guided_json": {}}, "DP633", "guided_json"),
        ({"best_of": 2}, "DP633", "best_of"),
        ({"best_of": True}, "DP633", "best_of"),
        ({"audio": {"voice": "x"}}, "DP633", "audio"),
        ({"modalities": ["audio"]}, "DP631", "modalities.0"),
        ({"metadata": {"a": 1}}, "DP631", "metadata.a"),
        ({"priority": 2**40}, "DP631", "priority"),
    ],
)
def test_a_fault_is_told_by_code_and_field(fields: dict[str, Any], code: str, param: str) -> None:
    error = refusal({"messages": HELLO, **fields})
    assert (error.code, error.param) == (code, param), error.message
    assert explanation(code).code == code


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        ([], "DP631", "messages"),
        ("hello", "DP631", "messages"),
        ([3], "DP631", "messages.0"),
        ([{"content": "a"}], "DP637", "messages.0.role"),
        ([{"role": "robot", "content": "a"}], "DP631", "messages.0.role"),
        ([{"role": ["user"], "content": "a"}], "DP631", "messages.0.role"),
        ([{"role": "user"}], "DP637", "messages.0.content"),
        ([{"role": "user", "content": None}], "DP637", "messages.0.content"),
        ([{"role": "user", "content": 5}], "DP631", "messages.0.content"),
        ([{"role": "user", "content": []}], "DP631", "messages.0.content"),
        ([*HELLO, {"role": "user", "content": ["a"]}], "DP631", "messages.1.content.0"),
        ([{"role": "user", "content": [{"type": "text"}]}], "DP637", "messages.0.content.0.text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "DP631", "messages.0.content.0.text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "DP635", "messages.0.content.0.type"),
        ([{"role": "user", "content": "a", "tool_calls": []}], "DP632", "messages.0.tool_calls"),
        ([{"role": "assistant"}], "DP637", "messages.0.content"),
        ([{"role": "assistant", "content": "a", "audio": {"id": "x"}}], "DP633", "messages.0.audio"),
        ([{"role": "assistant", "tool_calls": {}}], "DP631", "messages.0.tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "DP637", "messages.0.tool_calls.0.id"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}]}],
            "DP631",
            "messages.0.tool_calls.0.function.arguments",
        ),
        ([{"role": "tool", "content": "a"}], "DP637", "messages.0.tool_call_id"),
    ],
)
def test_a_fault_in_a_message_is_told_by_its_place(messages: Any, code: str, param: str) -> None:
    error = refusal({"messages": messages})
    assert (error.code, error.param) == (code, param), error.message


def test_an_answer_may_be_sent_back_as_it_came() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [call],
        "reasoning_content": "hm",
    }
    sent = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        answer,
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    assert checked_messages(sent) == [
        {"role": "system", "content": "a\nb"},
        {"role": "assistant", "reasoning_content": "hm", "tool_calls": [call], "content": ""},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
    ]


def test_null_is_as_good_as_nothing_and_harmless_values_are_taken() -> None:
    nothing = dict.fromkeys((*ChatRequest.model_fields, *CHAT))
    harmless = {"best_of": 1, "use_beam_search": False, "store": False, "user": "me", "service_tier": "auto"}
    plain = taken({"messages": HELLO, "seed": 1})
    assert taken({**nothing, "messages": HELLO, "seed": 1}) == plain
    assert taken({**harmless, "messages": HELLO, "seed": 1}) == plain


@pytest.mark.parametrize(
    ("prompt", "param"),
    [([], "prompt"), ({}, "prompt"), (3, "prompt"), ([[]], "prompt.0"), (["a", 1], "prompt.1"), ([[1, "a"]], "prompt.0"),
     ([True], "prompt.0"), ([1.5], "prompt.0")],
)  # fmt: skip
def test_a_prompt_of_another_type_is_refused(prompt: Any, param: str) -> None:
    error = refusal({"prompt": prompt}, chat=False)
    assert (error.code, error.param) == ("DP631", param)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(sorted({*ChatRequest.model_fields, *CHAT})), JSON, max_size=4), JSON)
def test_any_values_of_known_fields_are_taken_or_refused_with_a_code(
    fields: dict[str, Any], messages: Any
) -> None:
    for body in ({"messages": HELLO, **fields}, {**fields, "messages": messages}):
        error = fault(body)
        if error is not None:
            assert error.code.startswith(("DP4", "DP6")), error
            assert getattr(error, "param", None), error.message


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_none_end_in_status_400(url: str, path: str) -> None:
    for raw in (b"", b"[", b"[]", b'{"a": ' + b"[" * 100_000, b"\xff\xfe", b'{"model": "\\udc00"}'):
        answer = httpx.post(url + path, content=raw, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "DP630")
    answer = httpx.post(url + path, data={"prompt": "hello"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "DP630")


PATHS = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/v1/completions": {"prompt": "hello", "max_tokens": 1},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [5]},
}
FIELDS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, "tokens", "return_token_strs"})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(PATHS)),
    st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), JSON, max_size=3),
)
def test_any_body_gets_an_answer_that_is_no_fault_of_the_server(
    url: str, path: str, fields: dict[str, Any]
) -> None:
    answer = httpx.post(url + path, content=json.dumps({**PATHS[path], **fields}),
                        headers={"content-type": "application/json"}, timeout=60)  # fmt: skip
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["code"].startswith("DP")
        assert error["message"]
        assert set(error) >= {"message", "type", "param", "code"}


TEXT = st.text(max_size=6) | st.sampled_from(
    ["(", "a{9}", "start: ", 'start: "a"', "[", "(?=a)", "\x00", "\\d+"]
)
SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "string", "array", "number", "null", "no", ["string", "null"]])
        | JSON,
        "properties": st.dictionaries(TEXT, JSON, max_size=2) | JSON,
        "required": JSON,
        "items": JSON,
        "enum": JSON,
        "pattern": TEXT | JSON,
        "$ref": st.sampled_from(["#", "#/$defs/a", "http://a/b"]) | JSON,
        "minimum": JSON,
        "maxLength": JSON,
    },
)
FORMS = st.one_of(
    st.fixed_dictionaries({"structured_outputs": st.dictionaries(
        st.sampled_from(["regex", "grammar", "json", "choice"]), TEXT | SCHEMAS | JSON, max_size=1)}),
    st.fixed_dictionaries({"response_format": st.fixed_dictionaries({
        "type": st.just("json_schema"), "json_schema": st.fixed_dictionaries({"name": TEXT, "schema": SCHEMAS})})}),
    st.fixed_dictionaries({"chat_template_kwargs": st.dictionaries(
        st.sampled_from(["thinking", "messages", "tools", "self", "raise_exception", "m", "loop"]) | TEXT, JSON, max_size=2)}),
    st.fixed_dictionaries({"tools": st.lists(
        st.fixed_dictionaries({"type": st.just("function"), "function": st.fixed_dictionaries(
            {"name": TEXT}, optional={"parameters": SCHEMAS, "description": JSON, "strict": JSON})}) | JSON, max_size=2),
        "tool_choice": st.sampled_from(["auto", "required", "none"]) | JSON}),
    st.fixed_dictionaries({"prediction": st.fixed_dictionaries({"type": st.just("content"), "content": TEXT}),
                           "speculative": st.fixed_dictionaries({"draft_length": JSON})}),
)  # fmt: skip


@settings(max_examples=250, deadline=None, derandomize=True)
@given(FORMS)
def test_any_form_asked_for_is_served_or_refused_with_its_field(url: str, fields: dict[str, Any]) -> None:
    body = {"messages": HELLO, "max_tokens": 2, **fields}
    answer = httpx.post(url + "/v1/chat/completions", content=json.dumps(body),
                        headers={"content-type": "application/json"}, timeout=60)  # fmt: skip
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["code"].startswith("DP")
        assert error["param"].split(".")[0] in {*fields, "messages"}, error


def test_the_document_of_bodies_stands_by_itself() -> None:
    for model in (ChatRequest, CompletionRequest):
        text = json.dumps(openapi_body(model))
        assert "$ref" not in text
        assert '"additionalProperties": false' in text


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/embeddings"]
)
def test_what_is_not_built_says_so(url: str, path: str) -> None:
    answer = httpx.post(url + path, json={"model": "tiny", "input": "hello"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "DP634"


@pytest.mark.parametrize("path", sorted(PATHS))
def test_a_client_that_breaks_off_in_its_body_is_no_fault_of_the_server(path: str) -> None:
    sent: list[dict[str, Any]] = []
    arriving = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    headers = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers,
             "query_string": b"", "scheme": "http", "http_version": "1.1", "root_path": "",
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}  # fmt: skip

    async def receive() -> dict[str, Any]:
        return arriving.pop(0) if arriving else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def work() -> None:
        async with AsyncEngine(drafting_llm()) as engine:
            await create_app(engine, ServerSettings(served_model_names=("tiny",)))(scope, receive, send)

    asyncio.run(work())
    assert sent[0]["status"] == 499
