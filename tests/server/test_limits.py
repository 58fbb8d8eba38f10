"""Bodies too long or too slow, ids, origins, and what the log holds."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from draftproof.server.logs import write_logs
from support.serving import drafting_llm, serving

MOST = 2048


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(
        drafting_llm(None), max_body_bytes=MOST, body_timeout_s=0.5, cors_origins=("https://a.example",)
    ) as address:
        yield address


def padded(size: int) -> bytes:
    body = json.dumps({"prompt": "a", "max_tokens": 1, "user": ""}).encode()
    return body.replace(b'"user": ""', b'"user": "' + b"u" * (size - len(body)) + b'"')


def pieces(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 500):
        yield body[start : start + 500]


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_up_to_the_limit_are_taken_and_longer_ones_are_not(url: str, chunked: bool) -> None:
    for size, status in ((MOST, 200), (MOST + 1, 413), (50 * MOST, 413)):
        body = padded(size)
        assert len(body) == size
        answer = httpx.post(url + "/v1/completions", headers=JSON, content=pieces(body) if chunked else body)
        assert answer.status_code == status, answer.text
        if status == 413:
            assert answer.json()["error"]["code"] == "DP607"
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert answer.headers["x-request-id"]


def test_a_body_that_never_comes_is_given_up(url: str) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{"
        )
        answer = b""
        while part := connection.recv(4096):  # until the server closes
            answer += part
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"DP613" in answer


def test_ids_are_given_and_taken_over(url: str) -> None:
    first, second = httpx.get(url + "/health"), httpx.get(url + "/health")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    taken = httpx.get(url + "/nowhere", headers={"x-request-id": "my-id.7"})
    assert taken.headers.get_list("x-request-id") == ["my-id.7"]
    strange = httpx.get(url + "/health", headers={"x-request-id": 'a" b' + "c" * 300})
    assert len(strange.headers["x-request-id"]) == 32


def test_only_the_origins_allowed_may_read(url: str) -> None:
    for path in ("/health", "/nowhere"):
        answer = httpx.get(url + path, headers={"origin": "https://a.example"})
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        other = httpx.get(url + path, headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
    ask = {"origin": "https://a.example", "access-control-request-method": "POST",
           "access-control-request-headers": "authorization,x-stainless-lang"}  # fmt: skip
    assert httpx.options(url + "/v1/completions", headers=ask).status_code == 200


@pytest.mark.parametrize("prompts", [False, True])
def test_the_log_has_a_line_for_each_request_and_its_text_only_on_demand(prompts: bool) -> None:
    stream = io.StringIO()
    loggers = [logging.getLogger(name) for name in ("draftproof", "uvicorn")]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    write_logs("info", stream)
    try:
        with serving(drafting_llm(None), log_prompts=prompts, api_keys=("secret-key",)) as url:
            headers = {"x-request-id": "the-id", "authorization": "Bearer secret-key"}
            body = {"prompt": "a very private text", "max_tokens": 3, "ignore_eos": True}
            answer = httpx.post(url + "/v1/completions?q=private", json=body, headers=headers)
            assert answer.status_code == 200
            httpx.post(url + "/v1/completions", json={"prompt": "a", "nonsense": 1}, headers=headers)
    finally:
        for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    served, refused = (line for line in lines if line["message"] == "request")
    assert (served["request_id"], served["status"], served["path"]) == ("the-id", 200, "/v1/completions")
    assert (served["completion_tokens"], served["code"]) == (3, None)
    assert (refused["status"], refused["code"]) == (400, "DP632")
    assert served["key"] == refused["key"] != "-"
    assert ("private" in stream.getvalue()) == prompts
    assert "secret-key" not in stream.getvalue()
