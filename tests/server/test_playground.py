"""The playground in headless Chromium: with a scripted server for what must be made to happen, and with the real one."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.live import live
from support.scripted_server import SENTENCE, Seen, scripted_app

chromium = pytest.importorskip("support.chromium", reason="needs playwright", exc_type=ImportError)
expect = chromium.expect
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium.launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[str, Seen]]:
    app = scripted_app()
    with live(app) as address:
        yield address, app.state.seen


@pytest.fixture
def seen(scripted: tuple[str, Seen]) -> Seen:
    return scripted[1]


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    with chromium.visits(browser) as open_page:
        yield open_page


@pytest.fixture
def page(visit: Open, scripted: tuple[str, Seen]) -> Any:
    return visit(scripted[0])


ask, answer, text_of, race = chromium.ask, chromium.answer, chromium.text_of, chromium.race


# Files


def test_nothing_comes_from_elsewhere(visit: Open, scripted: tuple[str, Seen]) -> None:
    page = visit(scripted[0])
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert len(asked) > 8
    assert [url for url in asked if not url.startswith(scripted[0] + "/")] == []
    folder = Path(__file__).parents[2] / "src" / "draftproof" / "server" / "playground"
    for file in folder.iterdir():
        found = set(re.findall(r"https?://[\w./-]+", file.read_text(encoding="utf-8")))
        assert found <= {"http://www.w3.org/2000/svg"}, file.name


def test_the_page_and_its_files_are_served_with_a_strict_policy(scripted: tuple[str, Seen]) -> None:
    import httpx

    with httpx.Client(base_url=scripted[0]) as client:
        for path, kind in (
            ("/", "text/html"),
            ("/playground/main.js", "text/javascript"),
            ("/playground/style.css", "text/css"),
        ):
            response = client.get(path)
            assert response.status_code == 200
            assert response.headers["content-type"].startswith(kind)
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            again = client.get(path, headers={"If-None-Match": response.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert client.head(path).status_code == 200
        for name in (
            "nothing.js",
            "../app.py",
            "..%2f__init__.py",
            "%2e%2e%2f__init__.py",
            "index.html%00",
            "",
        ):
            assert client.get(f"/playground/{name}").status_code == 404, name


def test_it_works_under_a_path_of_a_proxy(visit: Open) -> None:
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/some/where", scripted_app())
    with live(outer) as address:
        page = visit(f"{address}/some/where/")
        ask(page, "Hello")
        assert text_of(page).split() == SENTENCE.split()
        page.close()


# Chat


def test_an_answer_streams_and_shows_what_was_drafted(page: Any) -> None:
    ask(page, "long", wait=False)
    expect(page.locator("#stop")).to_be_visible()
    expect(answer(page).locator("> .text")).to_have_text(re.compile(".{60}"))
    part = text_of(page)
    expect(page.locator("#stop")).to_be_visible()
    page.wait_for_selector("#send:visible")
    assert len(text_of(page)) > len(part)
    ask(page, "Hello")
    drafted = [span.inner_text().strip() for span in answer(page).locator(".drafted").all()]
    assert drafted == ["drops bend", "light ,", "colour by", "own angle", "and so", "bow appears"]
    assert text_of(page).split() == SENTENCE.split()
    facts = answer(page).locator(".facts").inner_text()
    assert re.search(
        r"19 tokens · [\d.]+ tokens/s · acceptance length 3\.00 · 12 of 24 drafts kept in 6 steps", facts
    )
    assert re.search(r"first after \d+ ms · seed \d+$", facts)
    # Not told by colour alone, and there is a key to it.
    style = answer(page).locator(".drafted").first.evaluate("e => getComputedStyle(e).textDecorationLine")
    assert style == "underline"
    expect(page.locator("#legend")).to_contain_text("accepted draft tokens")


def test_the_marks_can_be_switched_off(page: Any) -> None:
    ask(page, "Hello")
    page.uncheck("[name=show]")
    expect(page.locator("#legend")).to_be_hidden()
    line = answer(page).locator(".drafted").first.evaluate("e => getComputedStyle(e).textDecorationLine")
    assert line == "none"


def test_drafting_and_sampling_are_asked_for_as_set(page: Any, seen: Seen) -> None:
    ask(page, "Hello")
    assert seen.requests[-1]["speculative"] == {"draft_length": "auto", "include_pieces": True}
    assert "temperature" not in seen.requests[-1]
    page.check("[name=draft][value=off]")
    page.fill("[name=temperature]", "0.7")
    page.fill("[name=top_p]", "0.9")
    page.fill("[name=max_tokens]", "5")
    page.fill("[name=seed]", "42")
    page.fill("[name=system]", "Be brief")
    ask(page, "Again")
    sent = seen.requests[-1]
    assert sent["speculative"]["draft_length"] == 0
    assert (sent["temperature"], sent["top_p"], sent["max_completion_tokens"], sent["seed"]) == (
        0.7,
        0.9,
        5,
        42,
    )
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "user"]
    facts = answer(page).locator(".facts")
    expect(facts).to_contain_text("5 tokens (cut at the limit)")
    expect(facts).to_contain_text("nothing drafted")
    expect(facts).to_contain_text("seed 42")
    page.fill("[name=draft_length]", "4")
    ask(page, "And again")
    assert seen.requests[-1]["speculative"]["draft_length"] == 4


def test_a_setting_that_cannot_be_is_not_sent(page: Any, seen: Seen) -> None:
    before = len(seen.requests)
    page.fill("[name=temperature]", "9")
    page.fill("#prompt", "Hello")
    page.press("#prompt", "Enter")
    expect(page.locator("[name=temperature]")).to_be_focused()
    assert len(seen.requests) == before
    assert page.input_value("#prompt") == "Hello"


@pytest.mark.parametrize("way", ["button", "escape"])
def test_stopping_ends_the_request(page: Any, seen: Seen, way: str) -> None:
    left = seen.left
    ask(page, "long", wait=False)
    page.wait_for_selector(".message.assistant .drafted")
    if way == "button":
        page.click("#stop")
    else:
        page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")
    expect(answer(page).locator(".facts")).to_contain_text("stopped")
    assert len(text_of(page)) > 5
    deadline = time.monotonic() + 10
    while seen.left == left and time.monotonic() < deadline:
        page.wait_for_timeout(20)
    assert seen.left == left + 1
    ask(page, "Hello")  # and the conversation goes on
    assert text_of(page).split() == SENTENCE.split()
    assert len(seen.requests[-1]["messages"]) == 3


def test_thoughts_are_folded_away_and_not_sent_back(page: Any, seen: Seen) -> None:
    ask(page, "think")
    assert text_of(page).split() == SENTENCE.split()
    thoughts = answer(page).locator(".thoughts")
    expect(thoughts.locator(".text")).to_be_hidden()
    thoughts.locator("summary").click()
    expect(thoughts.locator(".text")).to_have_text("Light, water. ")
    assert answer(page).locator(".drafted").first.inner_text().strip() == "drops bend"
    ask(page, "Hello")
    assert "Light" not in json.dumps(seen.requests[-1]["messages"])


def test_markup_of_a_model_stays_text(page: Any) -> None:
    ask(page, "html")
    assert "<script>document.title='taken'</script>" in text_of(page)
    assert page.locator("#log img, #log script").count() == 0
    assert page.title() == "draftproof playground"


def test_the_conversation_is_kept_in_the_tab_exported_and_cleared(page: Any) -> None:
    page.fill("[name=system]", "Be brief")
    ask(page, "Hello")
    shown = page.locator("#log").inner_text()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#log").inner_text() == shown
    assert answer(page).locator(".drafted").count() == 6
    with page.expect_download() as download:
        page.click("#export")
    assert download.value.suggested_filename == "draftproof-chat.json"
    saved = json.loads(Path(download.value.path()).read_text())
    assert [message["role"] for message in saved["messages"]] == ["system", "user", "assistant"]
    details = saved["messages"][2]["details"]
    assert len(details["token_ids"]) == 19
    assert details["speculative"]["accepted"] == 12
    page.click("#clear")
    expect(page.locator("#chat-empty")).to_be_visible()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator(".message").count() == 0


def test_an_answer_can_be_asked_for_again(page: Any, seen: Seen) -> None:
    ask(page, "Hello")
    page.click("#again")
    page.wait_for_selector("#send:visible")
    assert page.locator(".message").count() == 2
    assert seen.requests[-1]["messages"] == seen.requests[-2]["messages"]
    assert seen.requests[-1]["seed"] != seen.requests[-2]["seed"]


# Trouble


def test_a_refusal_is_told_in_words_with_its_explanation(page: Any, scripted: tuple[str, Seen]) -> None:
    ask(page, "refuse")
    trouble = page.get_by_role("alert")
    expect(trouble.locator(".what")).to_have_text("DP604 The queue is full (64 waiting). Try again in 2 s.")
    trouble.locator("summary").click()
    expect(trouble).to_contain_text("As many requests wait as may wait.")
    expect(trouble).to_contain_text("Wait a little.")
    link = trouble.get_by_role("link")
    assert link.evaluate("e => e.href") == scripted[0] + "/api/errors/DP604"
    ask(page, "Hello")  # the question that was not answered is not asked along
    assert page.locator(".message").count() == 2
    assert page.get_by_role("alert").count() == 0


@pytest.mark.parametrize(
    ("prompt", "words"),
    [("fail", "DP451 A step failed."), ("cut", "The connection ended before the answer was complete.")],
)
def test_an_answer_that_breaks_off_keeps_what_there_is(page: Any, prompt: str, words: str) -> None:
    ask(page, prompt)
    expect(page.get_by_role("alert").locator(".what")).to_have_text(re.compile(re.escape(words)))
    assert text_of(page).startswith("Water drops bend")


def test_a_server_that_is_gone_is_told_of(visit: Open) -> None:
    with live(scripted_app()) as address:
        page = visit(address)
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")


def test_a_key_is_sent_and_never_kept(page: Any, seen: Seen) -> None:
    ask(page, "locked")
    expect(page.get_by_role("alert")).to_contain_text("Enter a key under Settings, Server.")
    page.fill("[name=key]", "right")
    page.click("#again")
    page.wait_for_selector("#send:visible")
    assert text_of(page).split() == SENTENCE.split()
    assert seen.requests[-1]["_key"] == "Bearer right"
    kept = page.evaluate(
        "JSON.stringify({...sessionStorage}) + JSON.stringify({...localStorage}) + document.cookie"
    )
    assert "right" not in kept.replace("bright", "")


# Race


def test_a_race_compares_the_same_request_token_for_token(page: Any, seen: Seen) -> None:
    before = len(seen.requests)
    verdict = race(page, "Hello")
    expect(verdict).to_contain_text("Identical. All 19 tokens are the same. Drafting was")
    runs = seen.requests[before:]
    assert [run["speculative"]["draft_length"] for run in runs] == ["auto", 0, "auto", 0]
    assert len({run["seed"] for run in runs}) == 1
    assert [run["max_completion_tokens"] for run in runs] == [4, 4, 256, 256]
    assert len({json.dumps(run["messages"]) for run in runs}) == 1
    on, off = page.locator("#lane-on"), page.locator("#lane-off")
    assert float(on.locator("[data-speed]").inner_text()) > float(off.locator("[data-speed]").inner_text())
    expect(on.locator("[data-facts]")).to_contain_text("acceptance length 3.00")
    expect(off.locator("[data-facts]")).to_contain_text("nothing drafted")
    assert on.locator(".drafted").count() == 6
    assert off.locator(".drafted").count() == 0
    shown = on.locator("[data-text]").inner_text()
    page.click("#replay")
    page.wait_for_function("t => document.querySelector('#lane-off [data-text]').innerText === t", arg=shown)
    assert on.locator("[data-text]").inner_text() == shown
    with page.expect_download() as download:
        page.click("#export-race")
    saved = json.loads(Path(download.value.path()).read_text())
    assert (saved["identical"], saved["first_difference"]) == (True, None)
    assert saved["drafting_on"]["token_ids"] == saved["drafting_off"]["token_ids"]


def test_a_race_shows_where_two_answers_part(page: Any) -> None:
    verdict = race(page, "differ")
    expect(verdict).to_contain_text("Different. The first difference is at token 8.")
    assert [mark.inner_text() for mark in page.locator(".lane mark").all()] == ["c", "h"]


def test_a_race_in_which_nothing_was_drafted_says_so(page: Any) -> None:
    verdict = race(page, "undrafted")
    expect(verdict).to_contain_text("Identical. All 19 tokens are the same. Nothing was drafted")


def test_a_race_may_be_stopped_and_run_again(page: Any) -> None:
    page.click("#tab-race")
    ask(page, "long", wait=False)
    page.wait_for_selector("#lane-on .drafted")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")
    expect(page.locator("#lane-on [data-facts]")).to_have_text("Stopped")
    expect(page.locator("#verdict")).to_be_hidden()
    expect(race(page, "Hello")).to_contain_text("Identical.")
    ask(page, "refuse")
    expect(page.get_by_role("alert")).to_contain_text("DP604")
    expect(page.locator("#verdict")).to_be_hidden()


# Parts


def pieces_of(text: str, chance: random.Random) -> list[str]:
    cuts = sorted(chance.sample(range(1, len(text)), min(len(text) - 1, chance.randrange(12))))
    return [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]


def test_events_may_be_cut_anywhere(page: Any) -> None:
    chance = random.Random(7)
    text = 'data: {"a": "ü€𝄞"}\r\n\r\n: a remark\ndata:two\ndata: lines\n\nevent: x\n\ndata: [DONE]\n\n'
    for _ in range(40):
        raw = text.encode()
        cuts = sorted(chance.sample(range(1, len(raw)), 9))
        parts = [list(raw[a:b]) for a, b in itertools.pairwise([0, *cuts, len(raw)])]
        found = page.evaluate(
            """async (parts) => {
                const { events } = await import("/playground/sse.js");
                const body = new ReadableStream({ start(to) {
                    for (const part of parts) to.enqueue(new Uint8Array(part));
                    to.close();
                } });
                const found = [];
                for await (const data of events(body)) found.push(data);
                return found;
            }""",
            parts,
        )
        assert found == ['{"a": "ü€𝄞"}', "two\nlines", "[DONE]"]


def test_marks_lie_where_the_pieces_were_however_the_text_comes(page: Any) -> None:
    chance = random.Random(11)
    for _ in range(60):
        text = "".join(chance.choices("abcdefgh ö\n", k=chance.randrange(2, 40)))
        pieces = [{"text": piece, "drafted": chance.random() < 0.5} for piece in pieces_of(text, chance)]
        hidden = {"text": "<mark>", "drafted": True}  # written, never shown
        shown = pieces_of(text, chance)
        runs = page.evaluate(
            """async ([pieces, shown]) => {
                const { Marks } = await import("/playground/marks.js");
                const marks = new Marks();
                marks.add(pieces);
                return shown.flatMap((text) => marks.cover(text));
            }""",
            [[hidden, *pieces], shown],
        )
        flags = [(letter, piece["drafted"]) for piece in pieces for letter in piece["text"]]
        assert [(letter, run["drafted"]) for run in runs for letter in run["text"]] == flags


# For everybody


def test_the_keyboard_is_enough(page: Any) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the prompt")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Your message")).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    page.wait_for_selector("#send:visible")
    assert page.locator(".message.user > .text").inner_text() == "one\ntwo"
    expect(page.get_by_role("textbox", name="Your message")).to_be_focused()
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Race")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Race")).to_be_visible()
    page.keyboard.press("Home")
    expect(page.get_by_role("tabpanel", name="Chat")).to_be_visible()
    ring = page.get_by_role("tab", name="Chat").evaluate("e => getComputedStyle(e).outlineStyle")
    assert ring == "solid"


def test_a_screen_reader_hears_the_answer_once_it_is_whole(page: Any) -> None:
    status = page.get_by_role("status")
    ask(page, "Hello", wait=False)
    expect(status).to_have_text("The model is answering.")
    page.wait_for_selector("#send:visible")
    expect(status).to_contain_text("Answer: Water drops bend")
    assert page.get_by_role("log").get_attribute("aria-live") == "off"


def test_every_control_has_a_name(page: Any) -> None:
    ask(page, "think")
    race(page, "Hello")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, a, [role=tabpanel]")].filter((e) => {
            const labels = [...(e.labels ?? [])].map((label) => label.innerText || label.textContent).join("");
            const by = document.getElementById(e.getAttribute("aria-labelledby") ?? "")?.textContent ?? "";
            return !(e.getAttribute("aria-label") || by || labels.trim() || (e.matches("button, a") && e.textContent.trim()));
        }).map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    doubled = page.evaluate(
        "[...document.querySelectorAll('[id]')].map(e => e.id).filter((id, i, all) => all.indexOf(id) !== i)"
    )
    assert doubled == []


@pytest.mark.parametrize("width", [320, 360, 700, 1000])
def test_nothing_is_cut_off_or_too_small_at_any_width(
    visit: Open, scripted: tuple[str, Seen], width: int
) -> None:
    page = visit(scripted[0], viewport={"width": width, "height": 640}, has_touch=width < 500)

    def fits() -> None:
        sideways = page.evaluate(
            """() => [document.documentElement, ...document.querySelectorAll(".view, .settings, main")]
                .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.id || e.tagName)"""
        )
        assert sideways == []
        small = page.evaluate(
            """() => [...document.querySelectorAll("button, select, summary")].filter((e) => e.checkVisibility())
                .filter((e) => e.getBoundingClientRect().height < 24).map((e) => e.outerHTML.slice(0, 80))"""
        )
        assert small == []
        box = page.locator("#prompt").bounding_box()
        assert box["y"] + box["height"] <= 640

    fits()
    ask(page, "W" * 300)
    fits()
    ask(page, "refuse")
    page.click(".trouble summary")
    fits()
    race(page, "Hello")
    fits()
    if width < 861:
        expect(page.get_by_role("complementary", name="Settings")).to_be_hidden()
        page.click("#toggle-settings")
        expect(page.locator("#close-settings")).to_be_focused()
        fits()
        page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_visible(visible=width >= 861)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit: Open, scripted: tuple[str, Seen], scheme: str) -> None:
    page = visit(scripted[0], color_scheme=scheme)
    ask(page, "Hello")
    ask(page, "refuse")
    faint = page.evaluate(CONTRAST)
    assert faint["faint"] == []
    assert faint["looked"] > 30
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 26)") == (
        scheme == "dark"
    )
    page.click("#theme")
    page.click("#theme")
    expect(page.locator("#theme")).to_have_attribute("aria-label", "Colours: dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 26)"


CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (c) => {
        const [r, g, b] = c.map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (e) => {
        for (; e; e = e.parentElement) {
            const colour = rgba(getComputedStyle(e).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return [255, 255, 255, 255];
    };
    let looked = 0;
    const faint = [];
    for (const e of document.querySelectorAll("body *")) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.checkVisibility() || e.closest(".unseen, :disabled")) continue;
        const [a, b] = [light(rgba(getComputedStyle(e).color)), light(ground(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        looked += 1;
        if (ratio < 4.5) faint.push([e.outerHTML.slice(0, 80), ratio]);
    }
    return { looked, faint };
}"""
"""Elements with text whose contrast is under what WCAG 2.2, 1.4.3 (AA) asks for text of normal size."""
