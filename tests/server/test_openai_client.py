"""The official client, in both its forms, against a live server: what works with OpenAI works here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from draftproof import SamplingParams
from support.llms import tiny_llm
from support.serving import apart, drafting_llm, serving
from support.tiny import random_tokens

HELLO: Any = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 3},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock", "parameters": {
        "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
        "additionalProperties": False}}},
]  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # In words, the functions would fill the tiny context.
    with serving(drafting_llm("dflash"), tool_format="hermes") as address:
        yield address + "/v1"


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="none", max_retries=0)


def create(client: OpenAI, **options: Any) -> Any:
    usual = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 12, "seed": 5}
    return client.chat.completions.create(**{**usual, **options})


def alone(**options: Any) -> Any:
    return tiny_llm().chat(
        HELLO, SamplingParams(**{"temperature": 1.0, "max_tokens": 12, "seed": 5, **options})
    )[0]


def run(url: str, work: Any) -> Any:
    async def bounded() -> Any:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.wait_for(work(client), 240)

    return asyncio.run(bounded())


def test_chat(client: OpenAI) -> None:
    answer = create(client)
    assert answer.choices[0].message.content == alone().text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.usage.completion_tokens_details is None
    assert answer.model_extra["speculative"]["acceptance_length"] >= 1


def test_streaming(client: OpenAI) -> None:
    chunks = list(create(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == alone().text
    assert chunks[-1].usage.completion_tokens == 12
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_the_streaming_helper_builds_the_whole_answer(client: OpenAI) -> None:
    options: Any = {
        "model": "tiny",
        "messages": HELLO,
        "max_completion_tokens": 12,
        "seed": 5,
        "logprobs": True,
    }
    with client.chat.completions.stream(**options, extra_body={"ignore_eos": True}) as stream:
        kinds = {event.type for event in stream}
        with pytest.raises(openai.LengthFinishReasonError):
            stream.get_final_completion()
    assert {"chunk", "content.delta"} <= kinds


def test_an_answer_can_be_sent_back(client: OpenAI) -> None:
    message = create(client).choices[0].message
    again = create(client, messages=[*HELLO, message, {"role": "user", "content": "and?"}])
    assert again.usage.prompt_tokens > 12
    dumped = create(client, messages=[*HELLO, message.model_dump(), {"role": "user", "content": "and?"}])
    assert dumped.choices[0].message.content == again.choices[0].message.content


def test_completions(client: OpenAI) -> None:
    expected = tiny_llm().generate("The quick", SamplingParams(temperature=1.0, max_tokens=8, seed=3))[0]
    options: Any = {"model": "tiny", "prompt": "The quick", "max_tokens": 8, "seed": 3}
    answer = client.completions.create(**options, echo=True, logprobs=2)
    assert answer.choices[0].text == "The quick" + expected.text
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or []) == answer.usage.total_tokens  # type: ignore[union-attr]
    assert (
        "".join(c.choices[0].text for c in client.completions.create(**options, stream=True)) == expected.text
    )


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "draftproof"


def test_seed(client: OpenAI) -> None:
    texts = [create(client, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_stop(client: OpenAI) -> None:
    text = alone().text
    answer = create(client, stop=[text[3:5], "never there"]).choices[0]
    assert (answer.message.content, answer.finish_reason) == (text[: text.index(text[3:5])], "stop")


def test_n(client: OpenAI) -> None:
    expected = [choice.text for choice in alone(n=3).choices]
    assert [choice.message.content for choice in create(client, n=3).choices] == expected


def test_logprobs(client: OpenAI) -> None:
    content = create(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [len(entry.top_logprobs) for entry in content] == [2] * 12
    assert b"".join(bytes(entry.bytes) for entry in content).decode("utf-8", "replace") == alone().text


def test_penalties_and_biases(client: OpenAI) -> None:
    fields: Any = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "top_p": 0.9, "temperature": 0.8}
    assert create(client, **fields).choices[0].message.content == alone(**fields).text
    biased = create(client, logit_bias={"70": 100})
    assert biased.choices[0].message.content == tiny_llm().tokenizer.decode([70] * 12)


def test_json_schema(client: OpenAI) -> None:
    wrapped = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
    answer = json.loads(
        create(client, response_format=wrapped, max_completion_tokens=200).choices[0].message.content
    )
    assert answer["city"] in ("Rome", "Oslo")
    assert answer["days"] in (1, 2, 3)


def test_parsed_answers(client: OpenAI) -> None:
    class Trip(BaseModel):
        near: bool
        far: bool

    answer = client.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Trip, max_completion_tokens=200, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Trip)


def test_prediction(client: OpenAI) -> None:
    options: Any = {
        "temperature": 0,
        "max_completion_tokens": 60,
        "extra_body": {"ignore_eos": True, "allowed_token_ids": apart()},
    }
    plain = create(client, **options)
    text = plain.choices[0].message.content
    predicted = create(client, **options, prediction={"type": "content", "content": text})
    assert predicted.choices[0].message.content == text
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens > 0
    assert predicted.usage.completion_tokens_details.rejected_prediction_tokens >= 0


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tools(client: OpenAI, choice: Any) -> None:
    answer = create(
        client, tools=TOOLS, tool_choice=choice, max_completion_tokens=300, parallel_tool_calls=False
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    if call.function.name == "weather":
        assert arguments["city"] in ("Rome", "Oslo")
    else:
        assert (call.function.name, choice) == ("clock", "required")
        assert arguments["zone"] in ("UTC", "CET")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    after = create(
        client, messages=[*HELLO, answer.choices[0].message, result], tools=TOOLS, tool_choice="none"
    )
    assert after.choices[0].message.tool_calls is None
    assert after.choices[0].message.content


def test_streamed_tools(client: OpenAI) -> None:
    options: Any = {
        "tools": TOOLS,
        "tool_choice": "required",
        "max_completion_tokens": 300,
        "parallel_tool_calls": False,
    }
    whole = create(client, **options).choices[0].message.tool_calls
    calls: dict[int, dict[str, str]] = {}
    for chunk in create(client, **options, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
            call["arguments"] += part.function.arguments or ""
        last = chunk.choices[0].finish_reason
    assert last == "tool_calls"
    shown = [(call["name"], call["arguments"]) for call in calls.values()]
    assert shown == [(call.function.name, call.function.arguments) for call in whole]
    assert all(call["id"] for call in calls.values())


def test_errors(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, temperature=-1)
    assert (caught.value.code, caught.value.param) == ("DP420", "temperature")
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        create(client, model="gpt-5")
    assert missing.value.param == "model"
    with pytest.raises(openai.NotFoundError) as unbuilt:
        client.responses.create(model="tiny", input="hello")
    assert unbuilt.value.code == "DP634"
    with pytest.raises(openai.BadRequestError) as unknown:
        create(client, extra_body={"temprature": 1})
    assert (unknown.value.code, unknown.value.param) == ("DP632", "temprature")


def test_an_error_in_mid_stream(url: str) -> None:
    body = {"ignore_eos": True}
    with serving(drafting_llm(None), request_timeout_s=0.2) as slow:
        client = OpenAI(base_url=slow + "/v1", api_key="none", max_retries=0)
        stream = create(client, max_completion_tokens=480, n=16, stream=True, extra_body=body)
        with pytest.raises(openai.APIError, match="longer than") as caught:
            list(stream)
    assert caught.value.code == "DP640"


def test_a_stream_given_up_harms_nobody(client: OpenAI) -> None:
    stream = create(client, max_completion_tokens=400, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert create(client).choices[0].message.content == alone().text


def test_the_async_client(url: str) -> None:
    async def work(client: AsyncOpenAI) -> tuple[str, str, str, str]:
        options: Any = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 12, "seed": 5}
        whole = await client.chat.completions.create(**options)
        stream = await client.chat.completions.create(**options, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        fields: Any = {"model": "tiny", "prompt": "The quick", "max_tokens": 8, "seed": 3}
        done = await client.completions.create(**fields)
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(**{**fields, "max_tokens": 0})
        models = [model.id async for model in client.models.list()]
        return whole.choices[0].message.content or "", text, done.choices[0].text, models[0]

    expected = tiny_llm().generate("The quick", SamplingParams(temperature=1.0, max_tokens=8, seed=3))[0]
    assert run(url, work) == (alone().text, alone().text, expected.text, "tiny")


CLIENTS = 32
PROMPTS = [random_tokens(3 + 3 * index, seed=index).tolist() for index in range(CLIENTS)]


def asked(index: int) -> dict[str, Any]:
    """A third greedy, the others sampled; lengths of all kinds."""
    return {
        "temperature": 0.0 if index % 3 == 0 else 0.9,
        "seed": index,
        "max_tokens": 8 + index,
        "frequency_penalty": 0.5 * (index % 2),
    }


def test_32_clients_at_once_get_what_each_gets_alone_without_drafting(url: str) -> None:
    alone = [tiny_llm().generate(p, SamplingParams(**asked(i)))[0].text for i, p in enumerate(PROMPTS)]

    async def one(client: AsyncOpenAI, index: int, draft: Any) -> str:
        extra = {"speculative": {"draft_length": draft}}
        options: Any = {"model": "tiny", "prompt": PROMPTS[index], **asked(index), "extra_body": extra}
        if index % 2:
            return str((await client.completions.create(**options)).choices[0].text)
        stream = await client.completions.create(**options, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def work(client: AsyncOpenAI) -> list[str]:
        drafts = ("auto", 0, 3)
        return await asyncio.gather(*(one(client, index, drafts[index % 3]) for index in range(CLIENTS)))

    assert run(url, work) == alone
    with serving(drafting_llm(None)) as plain:
        assert run(plain + "/v1", work) == alone
