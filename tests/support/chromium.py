"""A headless browser at the playground, for tests. Importing this needs playwright; running it skips without Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def launched() -> Iterator[Any]:
    """A browser. While it runs, this thread has a running event loop: servers are best started before and ended after."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def visits(browser: Any) -> Iterator[Callable[..., Any]]:
    """A function that opens a page, each in a context of its own; whatever goes wrong in one is raised at the end."""
    faults: list[str] = []
    contexts = []

    def open_page(address: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: said.type == "error" and faults.append(said.text))
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    # The browser reports refusals of the server in its console, too; those are wanted.
    assert [fault for fault in faults if "Failed to load resource" not in fault] == []


def ask(page: Any, text: str, *, wait: bool = True) -> None:
    """Send a prompt, and wait until what it started has ended."""
    page.fill("#prompt", text)
    if page.evaluate("matchMedia('(pointer: coarse)').matches"):
        page.click("#send")  # on a phone, Enter makes a new line
    else:
        page.press("#prompt", "Enter")
    if wait:
        page.wait_for_selector("#send:visible")


def answer(page: Any) -> Any:
    """The last answer."""
    return page.locator(".message.assistant").last


def text_of(page: Any) -> str:
    """Its text."""
    return answer(page).locator("> .text").inner_text()


def race(page: Any, text: str) -> Any:
    """Run a race; returns the verdict."""
    page.click("#tab-race")
    ask(page, text)
    return page.locator("#verdict")


__all__ = ["answer", "ask", "expect", "launched", "race", "text_of", "visits"]
