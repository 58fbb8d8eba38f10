"""`/v1/chat/completions` over HTTP: shapes, streams, and what becomes of requests that nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest

from draftproof import AsyncEngine, SamplingParams
from draftproof.server.app import create_app
from draftproof.server.settings import ServerSettings
from draftproof.server.streaming import EventStream
from support.llms import tiny_llm
from support.serving import apart, drafting_llm, serving, settles

HELLO = [{"role": "user", "content": "hello"}]
PATH = "/v1/chat/completions"
LLM = drafting_llm()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(LLM) as address:
        yield address


def chat(url: str, **body: Any) -> Any:
    answer = httpx.post(url + PATH, json={"messages": HELLO, "max_tokens": 12, "seed": 5, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(url: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks; the stream must end with [DONE] and nothing after it."""
    sent = {"messages": HELLO, "max_tokens": 12, "seed": 5, "stream": True, **body}
    answer = httpx.post(url + PATH, json=sent, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") and "\n" not in event for event in events[:-2])
    return [json.loads(event[6:]) for event in events[:-2]]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


def alone(**options: Any) -> Any:
    """The same from the offline engine without a drafter."""
    return tiny_llm().chat(
        HELLO, SamplingParams(**{"temperature": 1.0, "max_tokens": 12, "seed": 5, **options})
    )[0]


def test_an_answer_in_one_piece(url: str) -> None:
    answer, expected = chat(url), alone()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "tiny"
    assert answer["system_fingerprint"]
    assert abs(answer["created"] - time.time()) < 600
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, expected.finish_reason, None)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(expected.prompt_token_ids)
    assert usage["completion_tokens"] == len(expected.token_ids)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0
    assert "completion_tokens_details" not in usage
    assert set(answer["speculative"]) == {"steps", "drafted", "accepted", "acceptance_length"}
    assert answer["seed"] == 5


def test_the_seed_given_back_gives_the_same_text(url: str) -> None:
    first = chat(url, seed=None)
    assert first["seed"] < 2**53
    again = chat(url, seed=first["seed"])
    assert again["choices"] == first["choices"]


def test_a_stream_adds_up_to_the_answer(url: str) -> None:
    chunks = stream(url)
    assert text_of(chunks) == chat(url)["choices"][0]["message"]["content"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["system_fingerprint"]) for chunk in chunks}) == 1
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "stop_reason": None
    }  # fmt: skip
    assert all("usage" not in chunk and "speculative" not in chunk for chunk in chunks)


def test_usage_comes_last_and_alone(url: str) -> None:
    chunks = stream(url, stream_options={"include_usage": True})
    whole = chat(url)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    last = chunks[-1]
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]
    assert set(last["speculative"]) == set(whole["speculative"])


def test_usage_can_run_along(url: str) -> None:
    chunks = stream(url, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 12


def test_choices_are_those_of_the_engine_and_stream_by_index(url: str) -> None:
    expected = [choice.text for choice in alone(n=3).choices]
    assert [choice["message"]["content"] for choice in chat(url, n=3)["choices"]] == expected
    chunks = stream(url, n=3)
    assert [text_of(chunks, index) for index in range(3)] == expected
    ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    roles = [c["choices"][0]["index"] for c in chunks if "role" in c["choices"][0]["delta"]]
    assert sorted(roles) == [0, 1, 2]


def test_logprobs_have_the_shape_of_openai(url: str) -> None:
    expected = alone(logprobs=3)
    content = chat(url, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    assert len(content) == 12
    for entry, known in zip(content, expected.logprobs, strict=True):
        assert math.isclose(entry["logprob"], known.logprob, abs_tol=1e-5)
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
        assert [set(top) for top in entry["top_logprobs"]] == [{"token", "bytes", "logprob"}] * 3
    written = b"".join(bytes(entry["bytes"]) for entry in content)
    assert written.decode("utf-8", "replace") == expected.text
    streamed = [
        entry
        for chunk in stream(url, logprobs=True, top_logprobs=3)
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["bytes"] for entry in streamed] == [entry["bytes"] for entry in content]
    bare = chat(url, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in bare] == [[]] * 12


def test_token_ids_of_prompt_and_output(url: str) -> None:
    expected = alone()
    answer = chat(url, return_token_ids=True)
    assert answer["prompt_token_ids"] == expected.prompt_token_ids
    assert answer["choices"][0]["token_ids"] == expected.token_ids
    chunks = stream(url, return_token_ids=True)
    assert chunks[0]["prompt_token_ids"] == expected.prompt_token_ids
    assert [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])] == expected.token_ids


def test_prompt_logprobs_by_token_id(url: str) -> None:
    answer = chat(url, prompt_logprobs=2, return_token_ids=True)
    entries = answer["prompt_logprobs"]
    assert entries[0] is None
    assert len(entries) == len(answer["prompt_token_ids"])
    for token, entry in zip(answer["prompt_token_ids"][1:], entries[1:], strict=True):
        assert set(entry[str(token)]) == {"logprob", "rank", "decoded_token"}
        assert {1, 2} <= {one["rank"] for one in entry.values()}


def test_pieces_say_what_was_drafted(url: str) -> None:
    body = {"temperature": 0, "max_tokens": 120, "ignore_eos": True}
    chunks = stream(url, **body, speculative={"draft_length": 4, "include_pieces": True})
    pieces = [piece for chunk in chunks for piece in chunk.get("speculative", {}).get("pieces", [])]
    assert "".join(piece["text"] for piece in pieces) == text_of(chunks)
    counts = chunks[-1]["speculative"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert counts["accepted"] > 0, "nothing was drafted: the test says nothing"
    assert any(piece["drafted"] for piece in pieces)
    assert counts["steps"] + counts["accepted"] == 119  # the prompt's pass brings one more
    plain = stream(url, **body, speculative={"draft_length": 0, "include_pieces": True})
    assert text_of(plain) == text_of(chunks)
    assert plain[-1]["speculative"]["drafted"] == 0
    assert not any(p["drafted"] for c in plain for p in c.get("speculative", {}).get("pieces", []))


def test_a_prediction_is_drafted_and_counted(url: str) -> None:
    body = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "allowed_token_ids": apart()}
    plain = chat(url, **body, speculative={"draft_length": 0})
    text = plain["choices"][0]["message"]["content"]
    for prediction in (text, [{"type": "text", "text": text}]):
        answer = chat(url, **body, prediction={"type": "content", "content": prediction})
        assert answer["choices"] == plain["choices"]
        details = answer["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 30
        assert details["rejected_prediction_tokens"] < 30
        assert answer["speculative"]["steps"] < plain["speculative"]["steps"]
    wrong = chat(url, **body, prediction={"type": "content", "content": "The quick brown fox"})
    assert wrong["choices"] == plain["choices"]
    assert wrong["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0


def test_a_stop_string_is_cut_off(url: str) -> None:
    text = alone(max_tokens=40).text
    stop = text[8:10]
    answer = chat(url, max_tokens=40, stop=stop)["choices"][0]
    assert answer["message"]["content"] == text[: text.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)
    chunks = stream(url, max_tokens=40, stop=[stop])
    assert chunks[-1]["choices"][0]["stop_reason"] == stop
    assert text_of(chunks) == text[: text.index(stop)]
    kept = chat(url, max_tokens=40, stop=stop, include_stop_str_in_output=True)["choices"][0]
    assert kept["message"]["content"] == text[: text.index(stop) + len(stop)]


def test_a_stop_token_is_named(url: str) -> None:
    token = alone(max_tokens=40).token_ids[8]
    answer = chat(url, max_tokens=40, stop_token_ids=[token])["choices"][0]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", token)
    chunks = stream(url, max_tokens=40, stop_token_ids=[token])
    assert chunks[-1]["choices"][0]["stop_reason"] == token


def test_answers_have_the_form_asked_for(url: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wrapped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    body = {"max_tokens": 200}
    text = chat(url, **body, response_format=wrapped)["choices"][0]["message"]["content"]
    assert json.loads(text)["a"] in (1, 2)
    assert json.loads(text_of(stream(url, **body, structured_outputs={"json": schema})))["a"] in (1, 2)
    for outputs, allowed in (({"choice": ["yes", "no"]}, {"yes", "no"}), ({"regex": "(ab|cd)"}, {"ab", "cd"}),
                             ({"grammar": 'start: "x" | "y"'}, {"x", "y"})):  # fmt: skip
        answer = chat(url, **body, structured_outputs=outputs)["choices"][0]
        assert answer["message"]["content"] in allowed
        assert answer["finish_reason"] == "stop"
    assert chat(url, response_format={"type": "text"})["choices"] == chat(url)["choices"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"structured_outputs": {"regex": "("}}, "DP446", "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: x"}}, "DP447", "structured_outputs.grammar"),
        ({"structured_outputs": {"json": {"type": "no"}}}, "DP445", "structured_outputs.json"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}}, "DP445",
         "response_format.json_schema.schema"),
        ({"stop_token_ids": [10**6]}, "DP427", "stop_token_ids"),
        ({"logit_bias": {"1000000": 1}}, "DP435", "logit_bias"),
        ({"messages": [{"role": "user", "content": "fox " * 2000}]}, "DP402", "messages"),
        ({"n": 65}, "DP443", "n"),
        ({"n": 999}, "DP638", "n"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "DP639", "chat_template_kwargs.chat_template"),
        ({"stream": True, "prompt_logprobs": 1}, "DP636", "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "DP636", "stream_options"),
        ({"speculative": {"include_pieces": True}}, "DP636", "speculative.include_pieces"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "DP636",
         "stream_options.continuous_usage_stats"),
        ({"tool_choice": "required"}, "DP636", "tool_choice"),
        ({"tools": 3}, "DP631", "tools"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "DP636", "continue_final_message"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_engine_refuses_ends_in_status_400(
    url: str, fields: dict[str, Any], code: str, param: str, streamed: bool
) -> None:
    if streamed and code == "DP636" and param in ("stream_options", "speculative.include_pieces"):
        pytest.skip("no fault in a stream")
    body = {"messages": HELLO, "stream": streamed, **fields}
    answer = httpx.post(url + PATH, json=body, timeout=60)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error["message"]


def test_the_template_gets_its_variables(url: str) -> None:
    def prompt(**body: Any) -> int:
        return int(chat(url, **body)["usage"]["prompt_tokens"])

    usual = prompt()
    assert prompt(chat_template_kwargs={"thinking": True}) > usual
    assert prompt(add_generation_prompt=False) < usual
    assert prompt(reasoning_effort="low") == usual  # a template may leave a variable unused


def test_the_last_message_can_go_on(url: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "The quick"}]
    ids = chat(url, messages=messages, continue_final_message=True, return_token_ids=True)["prompt_token_ids"]
    assert tiny_llm().tokenizer.decode(ids).endswith("The quick")


def wait_for_abort(before: int) -> None:
    assert settles(LLM)
    assert LLM.metrics.finished.get("abort", 0) == before + 1


def test_a_client_that_leaves_its_stream_ends_the_request(url: str) -> None:
    before = LLM.metrics.finished.get("abort", 0)
    body = {"messages": HELLO, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", url + PATH, json=body) as answer:
        next(answer.iter_bytes())
    wait_for_abort(before)


def test_a_client_that_hangs_up_ends_the_request_too(url: str) -> None:
    before = LLM.metrics.finished.get("abort", 0)
    steps = LLM.metrics.steps
    body = json.dumps({"messages": HELLO, "max_tokens": 480, "ignore_eos": True, "n": 8}).encode()
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        line.sendall(head.encode() + body)
        while LLM.metrics.steps < steps + 3:
            time.sleep(0.005)
    assert settles(LLM)
    assert LLM.metrics.finished.get("abort", 0) > before


def test_a_request_out_of_time_is_ended_and_told_so() -> None:
    llm = drafting_llm()
    body = {"messages": HELLO, "max_tokens": 480, "ignore_eos": True, "n": 16, "temperature": 1}
    with serving(llm, request_timeout_s=0.2) as url:
        answer = httpx.post(url + PATH, json=body, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "DP640")
        events = httpx.post(url + PATH, json={**body, "stream": True}, timeout=60).text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        assert json.loads(events[-3][6:])["error"]["code"] == "DP640"
        assert chat(url, max_tokens=1)["choices"]  # the next one is served


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("wait", [0.0, 0.01, 0.05])
def test_a_handler_that_is_cancelled_leaves_nothing_running(streamed: bool, wait: float) -> None:
    llm = drafting_llm()
    body = {"messages": HELLO, "max_tokens": 400, "ignore_eos": True, "stream": streamed}
    arriving = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    scope = {"type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(), "query_string": b"",
             "headers": [(b"content-type", b"application/json")], "scheme": "http", "http_version": "1.1",
             "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}  # fmt: skip

    async def receive() -> Any:
        return arriving.pop() if arriving else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None: ...

    async def work() -> None:
        engine = AsyncEngine(llm)
        app = create_app(engine, ServerSettings(served_model_names=("tiny",)))
        task = asyncio.create_task(app(scope, receive, send))
        await asyncio.sleep(wait)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(settles, llm)
        assert llm.metrics.finished.get("length", 0) == 0, "it ran to its end"
        await engine.close()

    asyncio.run(work())


def test_a_fault_of_the_server_in_mid_stream_is_said_without_its_insides() -> None:
    async def chunks() -> AsyncGenerator[str, None]:
        yield "data: {}\n\n"
        raise ValueError("secret path")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(EventStream(chunks(), contextlib.AsyncExitStack(), 0.0)({}, None, send))  # type: ignore[arg-type]
    assert [message.get("more_body") for message in sent] == [None, True, False]
    error, done = sent[-1]["body"].decode().split("\n\n")[:2]
    assert done == "data: [DONE]"
    assert json.loads(error[6:])["error"]["code"] == "DP643"
    assert "secret" not in error


def test_a_silent_stream_says_that_it_is_there() -> None:
    sent: list[bytes] = []

    async def chunks() -> AsyncGenerator[str, None]:
        yield "data: 1\n\n"
        await asyncio.sleep(0.5)
        yield "data: 2\n\n"

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    asyncio.run(EventStream(chunks(), contextlib.AsyncExitStack(), 0.1)({}, None, send))  # type: ignore[arg-type]
    said = b"".join(sent)
    events = said.split(b"\n\n")
    assert [event for event in events if not event.startswith(b":")] == [
        b"data: 1", b"data: 2", b"data: [DONE]", b""
    ]  # fmt: skip
    assert 1 <= sum(event.startswith(b":") for event in events) <= 5
    quiet = sent.copy()
    sent.clear()
    asyncio.run(EventStream(chunks(), contextlib.AsyncExitStack(), 0.0)({}, None, send))  # type: ignore[arg-type]
    assert not any(part.startswith(b":") for part in sent)
    assert len(sent) < len(quiet)


def test_a_request_that_took_too_long_is_not_to_be_sent_again() -> None:
    """OpenAI's clients would, after a 408."""
    with serving(drafting_llm(None), request_timeout_s=0.05) as url:
        body = {"messages": HELLO, "max_tokens": 100, "ignore_eos": True, "n": 8}
        answer = httpx.post(url + PATH, json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "DP640")
    assert answer.headers["x-should-retry"] == "false"
