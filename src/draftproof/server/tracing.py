"""Traces for OpenTelemetry: a span for each request for text, under the names of its conventions for generative AI.

A span holds counts, times and the way the request ended; never what was asked or answered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.engine import RequestResult
from draftproof.errors import DraftproofError, ServerError

_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}


class Trace:
    """One request's span; made by `Tracing.started`."""

    def __init__(self, span: Any) -> None:
        self._span, self._began = span, time.monotonic()

    def first_token(self) -> None:
        """The first token of any of its outputs is here."""
        self._span.set_attribute("gen_ai.latency.time_to_first_token", time.monotonic() - self._began)

    def ended(self, results: Sequence[RequestResult], error: BaseException | None) -> None:
        """It is over.

        Args:
            results: what finished.
            error: why it ended early, or None.
        """
        choices = [choice for result in results for choice in result.choices]
        stats = [choice.stats for choice in choices]
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": sum(len(result.prompt_token_ids) for result in results),
                "gen_ai.usage.output_tokens": sum(len(choice.token_ids) for choice in choices),
                "gen_ai.response.finish_reasons": [choice.finish_reason for choice in choices],
                "gen_ai.latency.time_in_queue": max((one.seconds.queue for one in stats), default=0.0),
                "gen_ai.latency.e2e": time.monotonic() - self._began,
                "draftproof.drafted_tokens": sum(one.drafted_tokens for one in stats),
                "draftproof.accepted_tokens": sum(one.accepted_tokens for one in stats),
                "draftproof.decode_steps": sum(one.target_steps for one in stats),
            }
        )
        if error is not None:
            from opentelemetry.trace import StatusCode

            code = error.code if isinstance(error, DraftproofError) else type(error).__name__
            self._span.set_attribute("error.type", code)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class Tracing:
    """Makes spans.

    Args:
        provider: a `TracerProvider` of the OpenTelemetry SDK; closed by `close`.
        model: the name that is reported.
    """

    def __init__(self, provider: Any, model: str) -> None:
        self._provider, self._model = provider, model
        self._tracer = provider.get_tracer("draftproof")

    def started(self, route: str, request_id: str, headers: Mapping[str, str]) -> Trace:
        """A request goes in. A caller's trace, in the header `traceparent`, is gone on with."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        operation = _OPERATIONS.get(route, route)
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=extract(dict(headers)),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "draftproof",
                "gen_ai.request.model": self._model,
                "gen_ai.request.id": request_id,
            },
        )
        return Trace(span)

    def close(self) -> None:
        """Send what has not been sent yet."""
        self._provider.shutdown()


def tracing_to(endpoint: str, model: str) -> Tracing:
    """Spans over OTLP (HTTP) to a collector.

    Args:
        endpoint: URL, e.g. ``http://localhost:4318/v1/traces``. Headers and the like come from OpenTelemetry's own variables.
        model: the name that is reported.

    Raises:
        ServerError: DP615, OpenTelemetry is not installed, or the endpoint is no URL.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ServerError(
            "DP615",
            f"otlp_traces_endpoint must be a URL like http://localhost:4318/v1/traces, got {endpoint!r}",
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ServerError(
            "DP615",
            f"otlp_traces_endpoint needs OpenTelemetry ({error.name} is missing): pip install 'draftproof[otel]'",
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "draftproof"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Tracing(provider, model)
