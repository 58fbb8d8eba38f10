"""Everything that goes wrong comes in one shape, with a code that is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from draftproof import AsyncEngine
from draftproof.errors import (
    ALL,
    DraftproofError,
    EngineError,
    ModelError,
    RequestError,
    ServerError,
    explanation,
)
from draftproof.server.app import create_app
from draftproof.server.errors import error_body, status_of
from draftproof.server.settings import ServerSettings
from support.live import live
from support.llms import tiny_llm
from support.serving import drafting_llm, serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(drafting_llm(None)) as address:
        yield address


def shaped(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which must have the shape."""
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code", "explanation"}
    assert error["explanation"] == f"/api/errors/{error['code']}"
    assert explanation(error["code"])
    assert answer.headers["x-request-id"]
    return error


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "DP602"),
        ("POST", "/v1", 404, "DP602"),
        ("GET", "/playground/none.js", 404, "DP602"),
        ("GET", "/playground/../settings.py", 404, "DP602"),
        ("GET", "/v1/completions", 405, "DP603"),
        ("DELETE", "/v1/models", 405, "DP603"),
        ("POST", "/health", 405, "DP603"),
        ("BREW", "/v1/completions", 405, "DP603"),
        ("GET", "/v1/models/other", 404, "DP600"),
        ("GET", "/api/errors/none", 404, "DP614"),
        ("POST", "/v1/completions", 400, "DP630"),
        ("POST", "/v1/responses", 404, "DP634"),
    ],
)
def test_what_is_refused_has_the_shape(url: str, method: str, path: str, status: int, code: str) -> None:
    answer = httpx.request(method, url + path)
    assert (answer.status_code, shaped(answer)["code"]) == (status, code)
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"prompt": "a"', b"[" * 100000])
def test_bodies_that_are_no_json_object(url: str, body: bytes) -> None:
    answer = httpx.post(url + "/v1/completions", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, shaped(answer)["code"]) == (400, "DP630")


def test_explanations_are_served_by_code_and_name(url: str) -> None:
    listed = httpx.get(url + "/api/errors").json()["data"]
    assert [entry["code"] for entry in listed] == [entry.code for entry in ALL]
    for name in ("DP604", "dp604", "queue-full"):
        entry = httpx.get(f"{url}/api/errors/{name}").json()
        assert entry["code"] == "DP604"
        assert set(entry) == {
            "code", "name", "title", "meaning", "triggers", "fix", "before", "after", "prevention"
        }  # fmt: skip


def test_an_internal_fault_shows_nothing_of_the_inside() -> None:
    engine = AsyncEngine(tiny_llm())
    app = create_app(engine, ServerSettings(served_model_names=("tiny",)))

    @app.get("/broken")
    def broken() -> None:
        raise KeyError("a secret of the inside")

    @app.get("/failed")
    def failed() -> None:
        raise EngineError("DP451", "a secret of the inside")

    with live(app) as url:
        for path, code in (("/broken", "DP608"), ("/failed", "DP451")):
            answer = httpx.get(url + path)
            assert (answer.status_code, shaped(answer)["code"]) == (500, code)
            assert answer.json()["error"]["type"] == "server_error"
            assert "secret" not in answer.text
            assert "KeyError" not in answer.text
        assert httpx.get(url + "/health").status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("DP401", "empty"), 400, "invalid_request_error"),
        (ServerError("DP632", "unknown", "a"), 400, "invalid_request_error"),
        (ServerError("DP601", "key"), 401, "authentication_error"),
        (ServerError("DP600", "model"), 404, "not_found_error"),
        (ServerError("DP640", "long"), 408, "timeout_error"),
        (ServerError("DP604", "full"), 429, "rate_limit_error"),
        (ServerError("DP606", "end"), 503, "service_unavailable_error"),
        (EngineError("DP452", "end"), 503, "service_unavailable_error"),
        (ModelError("DP201", "gone"), 500, "server_error"),
    ],
)
def test_status_and_type(error: DraftproofError, status: int, kind: str) -> None:
    assert status_of(error) == status
    assert error_body(error)["error"]["type"] == kind


def test_the_field_at_fault_is_named() -> None:
    assert error_body(ServerError("DP632", "unknown", "a.b"))["error"]["param"] == "a.b"
    assert error_body(ServerError("DP632", "unknown"), "c")["error"]["param"] == "c"
    assert error_body(RequestError("DP401", "empty"))["error"]["param"] is None


def test_no_code_of_the_server_is_used_in_vain() -> None:
    """Every DP60x, DP61x in the server's source is in the catalog; every one there has a status on purpose."""
    codes = {entry.code for entry in ALL if re.fullmatch(r"DP6[01]\d", entry.code)}
    assert codes == {f"DP6{number:02}" for number in range(16)}
