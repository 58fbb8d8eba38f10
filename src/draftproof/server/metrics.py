"""Numbers for Prometheus, under the names that users of other engines know, with our prefix."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from draftproof.server.logs import current

if TYPE_CHECKING:
    from prometheus_client import Metric

    from draftproof.engine import RequestResult
    from draftproof.engine.metrics import Metrics

PREFIX = "draftproof:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LONG = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)


class RequestTimer:
    """Follows one request through the engine; made by `ServerMetrics.started`."""

    def __init__(self, metrics: ServerMetrics, route: str) -> None:
        self._metrics, self._route = metrics, route
        self._began = time.monotonic()
        self._last: float | None = None

    def first_token(self) -> None:
        """The first token is here."""
        self._metrics.first_token.observe(time.monotonic() - self._began)

    def tokens(self, count: int) -> None:
        """So many tokens came together; each counts with its share of the time since the ones before."""
        now = time.monotonic()
        if self._last is not None and count:
            share = (now - self._last) / count
            for _ in range(count):
                self._metrics.between.observe(share)
        self._last = now

    def finished(self, reason: str, result: RequestResult | None) -> None:
        """It is over.

        Args:
            reason: ``"stop"``, ``"length"``, ``"abort"``, ``"timeout"`` or ``"error"``.
            result: where there is one.
        """
        metrics = self._metrics
        metrics.latency.labels(metrics.model, self._route).observe(time.monotonic() - self._began)
        metrics.finished.labels(metrics.model, reason).inc()
        if result is None:
            return
        made = sum(len(choice.token_ids) for choice in result.choices)
        metrics.prompt_sizes.observe(len(result.prompt_token_ids))
        metrics.output_sizes.observe(made)
        metrics.queued.observe(max(choice.stats.seconds.queue for choice in result.choices))
        note = current.get()
        if note is not None:
            note.prompt_tokens += len(result.prompt_token_ids)
            note.completion_tokens += made


class ServerMetrics:
    """All metrics of one server, in a registry of its own.

    Args:
        model: value of the label `model_name`.
        engine: gives the engine's counters; asked at every scrape.
    """

    def __init__(self, model: str, engine: Callable[[], Metrics]) -> None:
        self.model = model
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(model, engine))
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Until a request's first token.", _FIRST
        )
        self.between = self._histogram(
            "inter_token_latency_seconds", "Between tokens of a request.", _BETWEEN
        )
        self.queued = self._histogram("request_queue_time_seconds", "Requests waited for a place.", _LONG)
        self.prompt_sizes = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self.output_sizes = self._histogram(
            "request_generation_tokens", "Tokens of all outputs of a request.", _TOKENS
        )
        self.latency = Histogram(
            PREFIX + "e2e_request_latency_seconds",
            "Whole requests.",
            ("model_name", "route"),
            buckets=_LONG,
            registry=self.registry,
        )
        self.finished = Counter(
            PREFIX + "request_success",
            "Requests that ended, by reason.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self.answers = Counter(
            PREFIX + "http_requests",
            "Answers, by address, method and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )

    def started(self, route: str) -> RequestTimer:
        """A request goes to the engine now."""
        return RequestTimer(self, route)

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(PREFIX + name, words, ("model_name",), buckets=buckets, registry=self.registry)
        return made.labels(self.model)


_COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens taken in."),
    ("generation_tokens", "output_tokens", "Tokens generated."),
    ("num_preemptions", "preemptions", "Times that an output lost its memory to others."),
    ("prefix_cache_queries", "prefix_asked_tokens", "Prompt tokens looked for in the prefix cache."),
    ("prefix_cache_hits", "prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
    ("prefix_cache_evictions", "evictions", "Cached blocks given up for new ones."),
    ("spec_decode_num_drafts", "drafted_steps", "Verifications of at least one draft token."),
    ("spec_decode_num_draft_tokens", "drafted_tokens", "Draft tokens verified."),
    ("spec_decode_num_accepted_tokens", "accepted_tokens", "Draft tokens kept."),
    ("engine_steps", "steps", "Passes of the target."),
    ("engine_decode_steps", "decode_steps", "Verifications of one output, drafted or not."),
    ("engine_draft_seconds", "draft_seconds", "Spent on drafting."),
    ("engine_target_seconds", "target_seconds", "Spent in the target's passes."),
    ("engine_verify_seconds", "verify_seconds", "Spent on verification."),
    ("engine_commit_seconds", "commit_seconds", "Spent on committing."),
)
_BY_POSITION: tuple[tuple[str, str, str], ...] = (
    (
        "spec_decode_num_draft_tokens_per_pos",
        "drafted_by_position",
        "Draft tokens verified, by position from 0.",
    ),
    (
        "spec_decode_num_accepted_tokens_per_pos",
        "accepted_by_position",
        "Draft tokens kept, by position from 0.",
    ),
)


class _EngineCollector(Collector):
    """The engine's own counters as of the scrape."""

    def __init__(self, model: str, engine: Callable[[], Metrics]) -> None:
        self._model, self._engine = model, engine

    def collect(self) -> Iterable[Metric]:
        counts = self._engine()
        for name, field, words in _COUNTERS:
            family = CounterMetricFamily(PREFIX + name, words, labels=["model_name"])
            family.add_metric([self._model], getattr(counts, field))
            yield family
        for name, field, words in _BY_POSITION:
            family = CounterMetricFamily(PREFIX + name, words, labels=["model_name", "position"])
            for position, value in enumerate(getattr(counts, field)):
                family.add_metric([self._model, str(position)], value)
            yield family
        used = (counts.blocks - counts.free_blocks) / counts.blocks if counts.blocks else 0.0
        for name, value, words in (
            ("num_requests_running", counts.running, "Outputs being decoded."),
            ("num_requests_waiting", counts.waiting, "Outputs that wait for a place or memory."),
            ("kv_cache_usage_perc", used, "Share of the blocks for keys and values in use; 1 is all."),
            (
                "spec_decode_acceptance_length",
                counts.acceptance_length,
                "Tokens per output and step since the start.",
            ),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, words, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
