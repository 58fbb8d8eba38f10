"""The playground over the real server and engine, with a tiny model and a drafter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from draftproof import SamplingParams
from support.llms import tiny_llm
from support.serving import drafting_llm, serving, settles

chromium = pytest.importorskip("support.chromium", reason="needs playwright", exc_type=ImportError)
ask, answer, expect, race = chromium.ask, chromium.answer, chromium.expect, chromium.race

LLM = drafting_llm("dflash")  # which always has something to propose


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(LLM) as address:
        yield address


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    with serving(drafting_llm(None), api_keys=("right",)) as address:
        yield address


@pytest.fixture(scope="module")
def browser(address: str, locked: str) -> Iterator[Any]:
    with chromium.launched() as browser:
        yield browser


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    with chromium.visits(browser) as open_page:
        yield open_page


@pytest.fixture
def page(visit: Callable[..., Any], address: str) -> Any:
    page = visit(address)
    for name, value in {"temperature": "1", "top_p": "1", "seed": "5", "max_tokens": "60"}.items():
        page.fill(f"[name={name}]", value)
    page.fill("[name=draft_length]", "6")
    return page


def saved(page: Any, button: str) -> Any:
    with page.expect_download() as download:
        page.click(button)
    return json.loads(Path(download.value.path()).read_text())


@pytest.mark.parametrize("draft", ["auto", "fixed", "off"])
def test_the_answer_is_that_of_the_target_alone(page: Any, draft: str) -> None:
    page.check(f"[name=draft][value={draft}]")
    ask(page, "a b a b a b")
    (expected,) = tiny_llm().chat(
        [{"role": "user", "content": "a b a b a b"}], SamplingParams(temperature=1, seed=5, max_tokens=60)
    )
    turn = saved(page, "#export")["messages"][-1]
    assert turn["content"] == expected.text
    details = turn["details"]
    assert details["token_ids"] == expected.token_ids
    assert details["usage"]["completion_tokens"] == len(expected.token_ids)
    counts = details["speculative"]
    assert counts["accepted"] <= counts["drafted"]
    if draft == "off":
        assert counts["drafted"] == 0
    if draft == "fixed":
        assert counts["drafted"] > 0
        marked = answer(page).locator(".drafted").count()
        assert bool(marked) == bool(counts["accepted"])


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_race_is_identical_token_for_token(page: Any, temperature: str) -> None:
    page.fill("[name=temperature]", temperature)
    expect(race(page, "a b a b a b")).to_contain_text("Identical.")
    race_saved = saved(page, "#export-race")
    on, off = race_saved["drafting_on"], race_saved["drafting_off"]
    assert on["token_ids"] == off["token_ids"] != []
    assert on["speculative"]["drafted"] > 0
    assert off["speculative"]["drafted"] == 0
    assert on["text"] == off["text"]


def test_stopping_frees_the_engine(page: Any) -> None:
    page.fill("[name=max_tokens]", "450")
    page.fill("[name=temperature]", "1.5")
    ask(page, "a b", wait=False)
    page.wait_for_function(
        "() => document.querySelector('.message.assistant > .text')?.textContent.length > 10"
    )
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")
    assert settles(LLM)


def test_a_refusal_comes_with_the_explanation_of_its_code(page: Any) -> None:
    ask(page, "too long " * 200)
    trouble = page.get_by_role("alert")
    expect(trouble.locator(".code")).to_have_text("DP402")
    trouble.locator("summary").click()
    expect(trouble).to_contain_text("The prompt and the output share the model's context.")


def test_a_server_with_keys_shows_the_page_and_asks_for_one(visit: Callable[..., Any], locked: str) -> None:
    page = visit(locked)
    expect(page.get_by_role("alert")).to_contain_text("Enter a key under Settings, Server.")
    page.fill("[name=key]", "right")
    page.keyboard.press("Tab")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.fill("[name=max_tokens]", "8")
    ask(page, "Hello")
    expect(answer(page).locator(".facts")).to_have_text(re.compile(r"^\d+ tokens?"))
