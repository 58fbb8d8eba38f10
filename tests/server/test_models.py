"""`/v1/models`."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from support.serving import drafting_llm, serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(drafting_llm(), served_model_names=("tiny", "org/other-name")) as address:
        yield address


def test_every_served_name_is_listed(url: str) -> None:
    listed = httpx.get(url + "/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny", "org/other-name"]
    assert {model["object"] for model in listed["data"]} == {"model"}
    assert all(model["max_model_len"] == 512 and model["created"] > 0 for model in listed["data"])


@pytest.mark.parametrize("name", ["tiny", "org/other-name"])
def test_one_is_given_by_name(url: str, name: str) -> None:
    assert httpx.get(f"{url}/v1/models/{name}").json()["id"] == name


def test_another_name_is_not_found(url: str) -> None:
    answer = httpx.get(url + "/v1/models/gpt-5")
    assert answer.status_code == 404
    assert "gpt-5" in answer.json()["error"]["message"]
    for path, body in {
        "/v1/completions": {"prompt": "a"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [5]},
    }.items():
        answer = httpx.post(url + path, json={"model": "gpt-5", **body})
        assert answer.status_code == 404, path
        assert answer.json()["error"]["param"] == "model"


def test_any_served_name_serves(url: str) -> None:
    body = {"model": "org/other-name", "prompt": "hello", "max_tokens": 2}
    assert httpx.post(url + "/v1/completions", json=body).json()["model"] == "org/other-name"
