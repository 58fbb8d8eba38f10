"""`draftproof chat` with a small random model, with a scripted server, and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, Run

from support.live import live
from support.scripted_server import SENTENCE, Seen, scripted_app

PROGRAM = "import typer, draftproof.cli.chat as c; a = typer.Typer(); a.command()(c.chat); a()"


@pytest.fixture
def chat() -> Run:
    """Run the command in this process."""
    import typer
    from typer.testing import CliRunner

    from draftproof.cli.chat import chat as command

    app = typer.Typer()
    app.command()(command)

    def invoke(*arguments: str, stdin: str = "") -> Done:
        result = CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=False)
        return Done(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.fixture
def local(chat: Run, tiny_model: str) -> Run:
    def invoke(*arguments: str, stdin: str) -> Done:
        return chat("--model", tiny_model, "--max-tokens", "24", *arguments, stdin=stdin)

    return invoke


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Seen]]:
    app = scripted_app()
    with live(app) as address:
        yield address, app.state.seen


def generated(run: Run, model: str, *arguments: str) -> str:
    return run("generate", *arguments, "--model", model, "--max-tokens", "24", "--json").out


def test_each_line_is_a_message_and_the_answers_alone_go_to_standard_output(
    local: Run, run: Run, tiny_model: str
) -> None:
    done = local(stdin="Hello\n\n/seed 5\nAnd now?\n")
    assert done.status == 0
    first = json.loads(generated(run, tiny_model, "Hello"))["text"]
    assert done.out.startswith(first + "\n")
    assert len(done.out) > len(first) + 2
    assert done.err == "seed 5\n"


def test_the_conversation_so_far_goes_along_until_reset(local: Run, tmp_path: Path) -> None:
    place = tmp_path / "talk.json"
    done = local("--system", "Be brief", stdin=f"One\nTwo\n/save {place}\n/reset\nOne\n/save {place}.2\n")
    assert done.status == 0
    talk = json.loads(place.read_text())
    assert [message["role"] for message in talk["messages"]] == ["system", *["user", "assistant"] * 2]
    assert talk["messages"][0]["content"] == "Be brief"
    again = json.loads(Path(f"{place}.2").read_text())
    assert again["messages"] == talk["messages"][:3]
    assert talk["settings"]["max_tokens"] == 24
    assert "4 messages saved" in done.err


def test_a_second_question_is_asked_with_what_came_before(local: Run, tiny_model: str) -> None:
    from draftproof.engine import LLM
    from draftproof.sampling import SamplingParams

    llm = LLM(tiny_model)
    turns = [{"role": "user", "content": "One"}]
    expected = ""
    for question in ("Two", None):
        answer = llm.chat(turns, SamplingParams(max_tokens=24))[0].text
        expected += answer + "\n"
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": question or ""}]
    assert local(stdin="One\nTwo\n").out == expected


def test_a_seed_fixes_the_answer_whatever_is_drafted(local: Run) -> None:
    sampling = ("--temperature", "1.0", "--seed", "3")
    told = {local(*sampling, "--drafter", drafter, stdin="Hi\n").out for drafter in ("none", "ngram")}
    told.add(local("--temperature", "1.0", stdin="/seed 3\nHi\n").out)
    assert len(told) == 1
    assert local("--temperature", "1.0", "--seed", "4", stdin="Hi\n").out not in told


def test_the_draft_length_is_passed_on(local: Run) -> None:
    plain = local(stdin="a b a b\n").out
    for choice in ("off", "2", "auto"):
        done = local(stdin=f"/draft {choice}\na b a b\n")
        assert done.out == plain, done.err


def test_commands_say_what_they_did(local: Run) -> None:
    done = local(
        "--drafter",
        "ngram",
        stdin="/draft 4\n/draft off\n/draft auto\n/draft x\n/seed x\n/seed none\n/system\n/nope\n",
    )
    assert done.status == 0
    assert done.err.splitlines() == [
        "drafting: up to 4 tokens a step",
        "drafting: off",
        "drafting: auto",
        "/draft takes a number of tokens, auto or off, got x",
        "a seed is a whole number or none, got x",
        "a seed is drawn for each answer",
        "no system message",
        "there is no /nope; /help lists the commands",
    ]
    assert not done.out
    assert "no drafter is loaded" in local("--drafter", "none", stdin="/draft 4\n").err
    assert local(stdin="/quit\nHello\n").out == ""


def test_a_message_may_take_several_lines_and_begin_with_a_slash(local: Run, tmp_path: Path) -> None:
    place = tmp_path / "talk.json"
    local(stdin=f"one \\\ntwo\n//three\n/save {place}\n")
    messages = json.loads(place.read_text())["messages"]
    assert [message["content"] for message in messages if message["role"] == "user"] == [
        "one \ntwo",
        "/three",
    ]


@pytest.mark.parametrize(
    ("code", "arguments", "stdin"),
    [
        ("DP402", [], "long " * 2000 + "\n"),
        ("DP420", ["--temperature", "-1"], "Hello\n"),
        ("DP684", [], "/save no/such/folder/talk.json\n"),
        ("DP680", ["--url", "http://127.0.0.1:9"], "Hello\n"),
        ("DP683", ["--url", "http://127.0.0.1:9", "--api-key-env", "NO_SUCH_VARIABLE"], "Hello\n"),
    ],
)
def test_errors_are_coded(chat: Run, tiny_model: str, code: str, arguments: list[str], stdin: str) -> None:
    model = [] if "--url" in arguments else ["--model", tiny_model]
    done = chat(*model, *arguments, stdin=stdin)
    assert done.status == 2
    assert done.err.startswith(f"error[{code}]"), done.err
    assert not done.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "http://x", "--drafter", "ngram"],
        ["--api-key-env", "X"],
        ["--url", "localhost:8000"],
    ],
)
def test_options_that_do_not_go_together(chat: Run, arguments: list[str]) -> None:
    assert chat(*arguments).status == 2


# With a server


def test_a_server_answers(chat: Run, server: tuple[str, Seen]) -> None:
    address, seen = server
    done = chat("--url", address, "--system", "Be brief", stdin="Why?\n/draft 4\n/seed 9\nAnd?\n")
    assert done.status == 0
    assert done.out == f"{SENTENCE} \n" * 2
    first, second = seen.requests[-2:]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert (second["seed"], second["speculative"]) == (9, {"include_pieces": True, "draft_length": 4})
    assert first["speculative"] == {"include_pieces": True}
    assert first["model"] == "scripted-model"
    assert "temperature" not in first


def test_thoughts_are_not_part_of_the_answer(chat: Run, server: tuple[str, Seen]) -> None:
    done = chat("--url", server[0] + "/v1/", stdin="Please think\n")
    assert done.out == f"{SENTENCE} \n"
    assert done.err == "Light, water. \n"


@pytest.mark.parametrize(
    ("prompt", "code", "words"),
    [
        ("refuse", "DP681", r"status 429\): the queue is full"),
        ("fail", "DP451", "a step failed"),
        ("cut", "DP682", "the stream stopped without its end mark"),
    ],
)
def test_errors_of_a_server(chat: Run, server: tuple[str, Seen], prompt: str, code: str, words: str) -> None:
    done = chat("--url", server[0], stdin=f"{prompt}\n")
    assert done.status == 2
    found = re.search(r"error\[(DP\d+)\] (.*)", done.err)
    assert found
    # A code of the catalog is told as it is; others under ours.
    assert found[1] in (code, "DP604")
    assert re.search(words.replace(r"status 429\): ", ""), found[2])


def test_the_key_comes_from_the_environment(
    chat: Run, server: tuple[str, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, seen = server
    monkeypatch.setenv("SOME_KEY", "right")
    assert chat("--url", address, "--api-key-env", "SOME_KEY", stdin="locked\n").out == f"{SENTENCE} \n"
    assert seen.requests[-1]["_key"] == "Bearer right"
    refused = chat("--url", address, stdin="locked\n")
    assert refused.status == 2
    assert "key" in refused.err
    assert seen.requests[-1]["_key"] is None


def test_a_page_that_is_no_server(chat: Run, server: tuple[str, Seen]) -> None:
    done = chat("--url", server[0] + "/playground", stdin="Hello\n")
    assert done.status == 2
    assert re.match(r"error\[DP68[12]\]", done.err)


def test_other_servers_are_sent_openai_fields_alone(chat: Run) -> None:
    app = scripted_app("someone-else")
    with live(app) as address:
        done = chat("--url", address, "--temperature", "0.5", stdin="/draft 4\nHello\n")
    assert done.out == f"{SENTENCE} \n"
    assert "no switch for drafting" in done.err
    sent = {name for name in app.state.seen.requests[-1] if name != "_key"}
    assert sent == {"model", "messages", "stream", "stream_options", "max_tokens", "temperature"}


def test_our_own_server_answers_as_the_model_does_here(chat: Run) -> None:
    from draftproof import SamplingParams
    from support.llms import tiny_llm
    from support.serving import drafting_llm, serving

    question = "a b a b a b"
    (expected,) = tiny_llm().chat(
        [{"role": "user", "content": question}], SamplingParams(temperature=1.0, seed=5, max_tokens=40)
    )
    options = ("--temperature", "1.0", "--seed", "5", "--max-tokens", "40")
    with serving(drafting_llm()) as address:
        for draft in ("auto", "off", "6"):
            done = chat("--url", address, *options, stdin=f"/draft {draft}\n{question}\n")
            assert done.status == 0, done.err
            assert done.out == expected.text + "\n"
        too_long = chat("--url", address, stdin="long " * 2000 + "\n")
    assert too_long.status == 2
    assert too_long.err.startswith("error[DP402]")


# On a terminal


class Terminal:
    """The command with a terminal for all its streams."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._side = pty.fork()
        self._unread = ""
        if self.pid == 0:  # pragma: no cover - the child becomes another program
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is started in the background ignores it
            environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
            os.execve(sys.executable, [sys.executable, "-c", PROGRAM, *arguments], environment)

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def wait_for(self, words: str, seconds: float = 40) -> str:
        """Read until the words are shown after what was waited for last; returns what came up to their end."""
        deadline = time.monotonic() + seconds
        while words not in self._unread:
            ready, _, _ = select.select([self._side], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {words!r} in {self._unread}"
            try:
                self._unread += os.read(self._side, 4096).decode(errors="replace")
            except OSError:  # Linux reports the end of the child in this way.
                raise AssertionError(f"ended before {words!r}: {self._unread}") from None
        before, _, self._unread = self._unread.partition(words)
        return before + words

    def shows(self, words: str, seconds: float) -> bool:
        """Whether the words come up in that time."""
        try:
            before = self.wait_for(words, seconds)
        except AssertionError:
            return False
        self._unread = before + self._unread
        return True

    def end(self, seconds: float = 40) -> int:
        """Say that no more is typed, as often as it takes to be heard; the exit status."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if not select.select([self._side], [], [], 1.0)[0]:
                    self.type("\x04")
                elif not os.read(self._side, 4096):
                    break
            except OSError:
                break
        else:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._side)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def talk_and_stop(*arguments: str, endless: str) -> None:
    terminal = Terminal(*arguments)
    terminal.wait_for("> ")
    terminal.type("a b a b\n")
    shown = terminal.wait_for("seed ")
    assert re.search(r"\d+ tokens? \((length|stop)\) · .* · seed ", shown), shown
    assert "\x1b[32m" in shown
    terminal.type("/reset\n")
    terminal.wait_for("is forgotten")
    terminal.type(f"{endless}\n")
    terminal.wait_for(endless)
    terminal.wait_for("\x1b[32m")  # an accepted draft token: the answer is under way
    terminal.type("\x03")
    terminal.wait_for("(stopped)")
    terminal.wait_for("> ")
    terminal.type("half a line")
    terminal.wait_for("half a line")
    # Nothing runs: the line is dropped, the program stays. Python's readline does not hear what comes between two keys of a
    # very fast typist, so press as often as it takes.
    for _ in range(20):
        terminal.type("\x03")
        if terminal.shows("ends)", 1):
            break
    terminal.wait_for("ends)")
    terminal.type("/draft off\n")
    terminal.wait_for("drafting: off")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(tiny_model: str) -> None:
    drafting = ("--drafter", "ngram", "--draft-mode", "fixed=7")
    talk_and_stop("--model", tiny_model, "--max-tokens", "2000", *drafting, endless="Hello")


def test_ctrl_c_stops_the_answer_of_a_server(server: tuple[str, Seen]) -> None:
    address, seen = server
    left = seen.left
    talk_and_stop("--url", address, endless="long")
    deadline = time.monotonic() + 20
    while seen.left == left and time.monotonic() < deadline:
        time.sleep(0.02)
    assert seen.left == left + 1


def test_ctrl_c_ends_the_command_where_nobody_is_at_the_terminal(server: tuple[str, Seen]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--url", server[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"long\nlong\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err


def test_control_characters_are_shown_and_not_obeyed() -> None:
    from draftproof.cli.chat_loop import SIGNS

    text: Any = "a\x1b[2J\x07"
    assert text.translate(SIGNS) == "a␛[2J␇"
