"""What Prometheus reads."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from draftproof.engine.metrics import Metrics
from draftproof.server.metrics import ServerMetrics
from support.serving import drafting_llm, serving


def samples(text: str) -> dict[str, float]:
    """By name and labels, the model's left out."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(
                f"{k}={v}" for k, v in sorted(sample.labels.items()) if k not in ("model_name", "le")
            )
            if "le" not in sample.labels:
                found[sample.name.removeprefix("draftproof:") + (f"{{{labels}}}" if labels else "")] = (
                    sample.value
                )
    return found


def test_counts_are_those_of_the_requests() -> None:
    body: dict[str, Any] = {"prompt": [7, 8, 9] * 30, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    with serving(drafting_llm()) as url:
        first = httpx.post(url + "/v1/completions", json=body, timeout=60).json()
        httpx.post(url + "/v1/completions", json=body, timeout=60).json()
        httpx.get(url + "/nowhere")
        text = httpx.get(url + "/metrics").text
    found = samples(text)
    assert found["prompt_tokens_total"] == 180
    assert found["generation_tokens_total"] == 80
    assert found["request_success_total{finished_reason=length}"] == 2
    assert found["time_to_first_token_seconds_count"] == 2
    assert found["inter_token_latency_seconds_count"] <= 78
    assert found["e2e_request_latency_seconds_count{route=/v1/completions}"] == 2
    assert found["request_prompt_tokens_sum"] == 180
    assert found["request_generation_tokens_sum"] == 80
    assert found["request_queue_time_seconds_count"] == 2
    assert found["num_requests_running"] == found["num_requests_waiting"] == 0
    assert found["kv_cache_usage_perc"] == 0
    assert 0 < found["prefix_cache_hits_total"] <= found["prefix_cache_queries_total"]
    drafted = found["spec_decode_num_draft_tokens_total"]
    accepted = found["spec_decode_num_accepted_tokens_total"]
    assert drafted == sum(v for k, v in found.items() if k.startswith("spec_decode_num_draft_tokens_per_pos"))
    assert accepted == sum(
        v for k, v in found.items() if k.startswith("spec_decode_num_accepted_tokens_per_pos")
    )
    assert 0 < first["speculative"]["drafted"] <= drafted
    assert accepted >= 2 * first["speculative"]["accepted"]
    assert found["http_requests_total{method=POST,route=/v1/completions,status=200}"] == 2
    assert found["http_requests_total{method=GET,route=other,status=404}"] == 1


def test_addresses_that_do_not_exist_make_no_counters() -> None:
    with serving(drafting_llm(None)) as url:
        for number in range(20):
            httpx.get(f"{url}/nowhere/{number}")
        httpx.request("BREW", url + "/health")
        text = httpx.get(url + "/metrics").text
    assert "/nowhere" not in text
    assert "BREW" not in text
    assert re.search(r'http_requests_total\{method="GET",route="other",status="404"\} 20', text)


def test_a_request_that_failed_is_counted_by_its_reason() -> None:
    metrics = ServerMetrics("m", Metrics)
    timer = metrics.started("/r")
    timer.first_token()
    timer.tokens(1)
    timer.tokens(3)
    timer.finished("timeout", None)
    found = samples(metrics.text().decode())
    assert found["request_success_total{finished_reason=timeout}"] == 1
    assert found["inter_token_latency_seconds_count"] == 3
    assert found["request_prompt_tokens_count"] == 0


def test_use_of_memory_is_a_share() -> None:
    counts = Metrics(blocks=8, free_blocks=2, running=3, waiting=1, decode_steps=4, accepted_tokens=2)
    found = samples(ServerMetrics("m", lambda: counts).text().decode())
    assert found["kv_cache_usage_perc"] == pytest.approx(0.75)
    assert (found["num_requests_running"], found["num_requests_waiting"]) == (3, 1)
    assert found["spec_decode_acceptance_length"] == pytest.approx(1.5)


def test_two_servers_count_apart() -> None:
    one, other = ServerMetrics("m", Metrics), ServerMetrics("m", Metrics)
    seconds = SimpleNamespace(queue=0.0)
    choice = SimpleNamespace(token_ids=[1, 2], stats=SimpleNamespace(seconds=seconds))
    one.started("/r").finished("stop", SimpleNamespace(choices=[choice, choice], prompt_token_ids=[1]))  # type: ignore[arg-type]
    assert samples(one.text().decode())["request_generation_tokens_sum"] == 4
    assert samples(other.text().decode())["request_generation_tokens_sum"] == 0
