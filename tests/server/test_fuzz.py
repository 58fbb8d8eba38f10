"""Every endpoint of the OpenAPI document, asked by schemathesis with what fits it and what does not: never a 500, never a hang,
and every refusal has a code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import SkipTest

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import InvalidArgument, Unsatisfiable
from schemathesis import GenerationMode

from support.serving import drafting_llm, serving, settles

SECONDS = 30
"""Within which every answer must be whole."""


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Any]]:
    llm = drafting_llm("dflash")
    with serving(llm, tool_format="hermes", max_choices=16) as url:
        yield url, llm


@pytest.fixture(scope="module")
def document(served: tuple[str, Any]) -> Any:
    return schemathesis.openapi.from_url(served[0] + "/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_breaks_it(document: Any, mode: GenerationMode) -> None:
    """`schemathesis`' own pytest plugin does not run under every pytest, so its strategies are used directly."""
    asked = 0
    for result in document.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=60,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            check(case.call(timeout=SECONDS))

        # Some operations take nothing that could be wrong.
        with contextlib.suppress(Unsatisfiable, InvalidArgument, SkipTest):
            ask()
    assert asked > 100


def check(response: Any) -> None:
    assert response.status_code < 500, (response.status_code, response.text[:500])
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error["code"].startswith("DP"), error
        assert error["message"]
        assert response.headers["x-request-id"]


def test_the_document_has_every_endpoint(document: Any) -> None:
    found = {operation.ok().path for operation in document.get_all_operations()}
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/ready",
        "/metrics",
        "/api/errors",
    } <= found


def test_it_works_afterwards(served: tuple[str, Any]) -> None:
    """Runs last in this file: nothing is left running, and a plain request is answered."""
    url, llm = served
    assert settles(llm)
    body = {"prompt": "hello", "max_tokens": 4, "temperature": 0}
    answer = httpx.post(url + "/v1/completions", json=body, timeout=SECONDS)
    assert answer.status_code == 200
    assert httpx.get(url + "/health").status_code == 200
