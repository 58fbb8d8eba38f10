"""Spans for OpenTelemetry: one a request, with counts and the way it ended, and without a word of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI, Request
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from draftproof.errors import ServerError
from draftproof.server.tracing import Tracing, tracing_to
from support.live import live
from support.serving import NAME, drafting_llm, serving

WORDS = "a secret of mine"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, InMemorySpanExporter]]:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with serving(drafting_llm(), Tracing(provider, NAME)) as url:
        yield url, spans


def chat(url: str, headers: dict[str, str] | None = None, **more: object) -> httpx.Response:
    body = {
        "messages": [{"role": "user", "content": WORDS}],
        "max_completion_tokens": 6,
        "ignore_eos": True,
        **more,
    }
    return httpx.post(url + "/v1/chat/completions", json=body, headers=headers, timeout=60)


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    """The one span there is; it ends a moment after its answer."""
    deadline = time.monotonic() + 10
    while not spans.get_finished_spans() and time.monotonic() < deadline:
        time.sleep(0.01)
    (span,) = spans.get_finished_spans()
    return span


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span(served: tuple[str, InMemorySpanExporter], stream: bool) -> None:
    url, spans = served
    spans.clear()
    trace = "0af7651916cd43dd8448eb211c80319c"
    answer = chat(url, {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}, stream=stream, n=2)
    assert answer.status_code == 200
    span = only(spans)
    told = dict(span.attributes or {})
    assert span.name == "chat tiny"
    assert f"{span.context.trace_id:032x}" == trace
    assert told["gen_ai.usage.output_tokens"] == 12
    assert told["gen_ai.usage.input_tokens"] > 0
    assert told["gen_ai.response.finish_reasons"] == ("length", "length")
    assert 0 < told["gen_ai.latency.time_to_first_token"] <= told["gen_ai.latency.e2e"]
    assert span.status.is_ok
    assert not any(WORDS in str(value) for value in told.values())


def test_a_refusal_is_told(served: tuple[str, InMemorySpanExporter]) -> None:
    url, spans = served
    spans.clear()
    assert chat(url, temperature=-1).status_code == 400
    span = only(spans)
    assert (span.attributes or {})["error.type"].startswith("DP4")
    assert not span.status.is_ok


def test_an_endpoint_that_is_no_url() -> None:
    with pytest.raises(ServerError, match="http://") as refused:
        tracing_to("localhost:4317", NAME)
    assert refused.value.code == "DP615"


def test_a_collector_gets_them() -> None:
    """Over HTTP, as a collector does: what is left is sent when the server ends."""
    got: list[bytes] = []
    collector = FastAPI()

    @collector.post("/v1/traces")
    async def traces(request: Request) -> dict[str, str]:
        got.append(await request.body())
        return {}

    with live(collector) as address:
        tracing = tracing_to(address + "/v1/traces", NAME)
        tracing.started("/v1/completions", "id", {}).ended([], None)
        tracing.close()
    assert b"text_completion tiny" in b"".join(got)
