"""API keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from draftproof.errors import ServerError
from draftproof.server.auth import is_known, key_name
from draftproof.server.settings import KEY_VARIABLE, ServerSettings, read_keys
from support.serving import drafting_llm, serving

KEYS = ("first-key", "second-key")
GUARDED = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/metrics"),
    ("POST", "/v1/responses"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(drafting_llm(None), api_keys=KEYS, metrics_need_key=True) as address:
        yield address


@pytest.mark.parametrize(("method", "path"), GUARDED)
@pytest.mark.parametrize(
    "header",
    [None, "Bearer wrong", "Bearer first-key2", "Bearer first-ke", "Basic first-key", "Bearer", "Bearer é"],
)
def test_without_a_key_nothing_is_given(url: str, method: str, path: str, header: str | None) -> None:
    headers = [] if header is None else [(b"authorization", header.encode())]
    answer = httpx.request(method, url + path, headers=headers, json={"prompt": "a"})
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("DP601", "authentication_error")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "wrong" not in answer.text


@pytest.mark.parametrize("key", KEYS)
def test_every_key_lets_in(url: str, key: str) -> None:
    headers = {"authorization": f"Bearer {key}"}
    body = {"prompt": "a", "max_tokens": 2}
    assert httpx.post(url + "/v1/completions", headers=headers, json=body).status_code == 200
    assert httpx.get(url + "/metrics", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/", "/playground/main.js", "/api/errors/DP601", "/openapi.json"]
)
def test_some_need_no_key(url: str, path: str) -> None:
    assert httpx.get(url + path).status_code == 200


def test_known_keys() -> None:
    assert is_known("second-key", KEYS)
    assert not is_known("second-ke", KEYS)
    assert not is_known("", KEYS)
    assert not is_known("first-key", ())
    assert key_name("first-key") != key_name("second-key")
    assert "first" not in key_name("first-key")


def test_keys_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\n one \n\ntwo\n")
    assert read_keys(file, {}) == ("one", "two")
    assert read_keys(file, {KEY_VARIABLE: "three, two"}) == ("one", "two", "three")
    assert read_keys(None, {KEY_VARIABLE: "three"}) == ("three",)
    assert read_keys(None, {}) == ()


def test_no_keys_where_some_were_promised_is_an_error(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("# none\n")
    binary.write_bytes(b"\xff\xfe\xfa")
    for file, environment in (
        (empty, {}),
        (binary, {}),
        (tmp_path / "gone", {}),
        (tmp_path, {}),
        (None, {KEY_VARIABLE: ""}),
        (None, {KEY_VARIABLE: " , "}),
    ):
        with pytest.raises(ServerError) as caught:
            read_keys(file, environment)
        assert caught.value.code == "DP612"


@pytest.mark.parametrize("key", ["", "with space", "line\n", "ключ"])
def test_keys_that_no_header_can_carry_are_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ServerError) as caught:
        ServerSettings(api_keys=(key,))
    assert caught.value.code == "DP612"
    assert not key or key not in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"port": 70000},
        {"port": True},
        {"max_queue": -1},
        {"max_body_bytes": 0},
        {"grace_s": float("nan")},
        {"request_timeout_s": 0},
        {"root_path": "api"},
        {"served_model_names": (" ",)},
        {"max_concurrent_per_key": 0},
    ],
)
def test_settings_out_of_range_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ServerError) as caught:
        ServerSettings(**fields)  # type: ignore[arg-type]
    assert caught.value.code == "DP610"
    assert next(iter(fields)) in caught.value.message
