"""`draftproof generate` on a small random model."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Done, Run

from draftproof.cli.report import Comparison
from draftproof.engine import Choice, RequestResult, RequestStats

STATS = {
    "acceptance_length",
    "decode_tokens_per_second",
    "target_steps",
    "decode_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "accepted_lengths",
    "seconds",
}


@pytest.fixture
def ask(run: Run, tiny_model: str) -> Run:
    def invoke(*arguments: str, stdin: str | None = None) -> Done:
        return run("generate", *arguments, "--model", tiny_model, "--max-tokens", "40", stdin=stdin)

    return invoke


def test_the_text_alone_goes_to_standard_output(ask: Run) -> None:
    streamed = ask("Hello there")
    assert streamed.status == 0
    (line,) = streamed.err.splitlines()
    assert re.match(
        r"\d+ tokens \((length|stop)\) in [\d.]+ s · [\d.]+ tok/s decoding · ngram: acceptance length", line
    )
    document = json.loads(ask("Hello there", "--json").out)
    assert streamed.out == document["text"] + "\n"
    assert ask("Hello there", "--no-stream").out == streamed.out


def test_json_holds_everything(ask: Run, tiny_model: str) -> None:
    done = ask("Hello there", "--json", "--compare", "--temperature", "0.8", "--seed", "7")
    assert done.status == 0
    assert not done.err
    document = json.loads(done.out)
    assert set(document) == {
        *(
            "model",
            "drafter",
            "text",
            "token_ids",
            "finish_reason",
            "seed",
            "stats",
            "prompt_token_ids",
            "compare",
        )
    }
    assert (document["model"], document["drafter"], document["seed"]) == (tiny_model, "ngram", 7)
    assert set(document["stats"]) == STATS
    assert set(document["stats"]["seconds"]) == {"prefill", "draft", "target", "verify", "commit", "total"}
    compare = document["compare"]
    assert set(compare) == {"identical", "first_difference", "speedup", "without_drafter"}
    assert (compare["identical"], compare["first_difference"]) == (True, None)
    plain = compare["without_drafter"]
    assert plain["token_ids"] == document["token_ids"]
    assert plain["stats"]["drafted_tokens"] == 0
    assert plain["stats"]["acceptance_length"] == 1.0
    assert document["stats"]["drafted_tokens"] >= document["stats"]["accepted_tokens"]
    assert json.loads(ask("Hello there", "--json").out)["compare"] is None


@pytest.mark.parametrize("sampling", [[], ["--temperature", "1.0"]])
def test_compare_says_that_the_tokens_are_the_same(ask: Run, sampling: list[str]) -> None:
    done = ask("a b a b a b", "--compare", *sampling)
    assert done.status == 0
    assert re.search(r"identical: yes, all \d+ tokens are the same", done.err)
    assert re.search(r"with ngram +[\d.]+ tok/s", done.err)
    assert re.search(r"without +[\d.]+ tok/s +acceptance length 1\.00", done.err)


def test_compare_fails_when_a_token_differs(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Sound engines give no difference to show, so the second run is altered on its way here.
    from draftproof.cli import generate

    def altered(question: object, llm: object, params: object, drafted: RequestResult) -> Comparison:
        tokens = [*drafted.token_ids[:5], 17 if drafted.token_ids[5] != 17 else 18, *drafted.token_ids[6:]]
        return Comparison(drafted, _result(tokens))

    monkeypatch.setattr(generate, "_without_drafter", altered)
    done = ask("Hello there", "--compare")
    assert done.status == 1
    assert "identical: NO, the first difference is at output token 5" in done.err
    assert ask("Hello there", "--compare", "--json").status == 1


def _result(tokens: list[int], reason: str = "length") -> RequestResult:
    return RequestResult("id", [1], [Choice(0, "", tokens, reason, 0, None, RequestStats())])


@pytest.mark.parametrize(
    ("ours", "plain", "identical", "first"),
    [
        (_result([1, 2]), _result([1, 2]), True, None),
        (_result([1, 2]), _result([1, 3]), False, 1),
        (_result([1, 2]), _result([1]), False, 1),
        (_result([]), _result([4]), False, 0),
        (_result([1], "stop"), _result([1]), False, None),
    ],
)
def test_comparison(ours: RequestResult, plain: RequestResult, identical: bool, first: int | None) -> None:
    comparison = Comparison(ours, plain)
    assert (comparison.identical, comparison.first_difference) == (identical, first)
    assert comparison.speedup == 0.0


def test_the_prompt_may_come_from_standard_input(ask: Run) -> None:
    assert ask("-", stdin="Hello there").out == ask("Hello there").out


def test_a_seed_fixes_the_text_whatever_drafts(ask: Run) -> None:
    sampling = ("--temperature", "1.0", "--seed", "11")
    texts = {ask("Hello", *sampling, "--drafter", name).out for name in ("none", "ngram", "auto")}
    assert len(texts) == 1
    assert ask("Hello", "--temperature", "1.0", "--seed", "12").out not in texts


def test_the_drafter_of_auto_is_taken_from_the_environment(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_DRAFTER", "none")
    assert json.loads(ask("Hello", "--json").out)["drafter"] == "no drafter"
    assert json.loads(ask("Hello", "--json", "--drafter", "ngram").out)["drafter"] == "ngram"


def test_raw_leaves_the_chat_template_out(ask: Run) -> None:
    raw = json.loads(ask("Hello", "--raw", "--json").out)["prompt_token_ids"]
    chat = json.loads(ask("Hello", "--system", "Be brief", "--json").out)["prompt_token_ids"]
    assert len(raw) == 5
    assert len(chat) == 5 + len("Be brief") + 5  # Two roles, two ends, the assistant's opening.
    assert ask("Hello", "--raw", "--system", "x").status == 2


def test_a_stop_string_ends_the_text(ask: Run) -> None:
    text = ask("Hello").out
    stop = text[4:6]
    cut = ask("Hello", "--stop", stop, "--stop", "\0never").out
    assert cut == text[: text.index(stop)] + "\n"


def test_block_size_is_passed_on(ask: Run) -> None:
    stats = json.loads(ask("a b a b a b a b", "--block-size", "2", "--json").out)["stats"]
    assert max(stats["accepted_lengths"]) <= 1


def _truncated(model: str, folder: Path) -> str:
    shutil.copytree(model, folder / "model")
    weights = folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return str(folder / "model")


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("DP401", [""]),
        ("DP401", ["  \n"]),
        ("DP402", ["long " * 2000]),
        ("DP420", ["Hello", "--temperature", "-1"]),
        ("DP200", ["Hello", "--model", "no-such-model"]),
        ("DP201", ["Hello", "--model", "./no/such/folder"]),
        ("DP204", ["Hello", "--model", "TRUNCATED"]),
        ("DP205", ["Hello", "--model", "nobody/nothing-of-this-name"]),
        ("DP2", ["Hello", "--drafter", "nobody/nothing-of-this-name"]),
        ("DP4", ["Hello", "--max-model-len", "100000"]),
        ("DP4", ["Hello", "--top-p", "2"]),
        ("DP4", ["Hello", "--max-tokens", "0"]),
        ("DP2", ["Hello", "--dtype", "float7"]),
        ("DP", ["Hello", "--block-size", "1"]),
        ("DP3", ["Hello", "--drafter", "GOLDEN"]),
    ],
)
def test_bad_input_is_a_coded_error(
    run: Run,
    tiny_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    arguments: list[str],
) -> None:
    monkeypatch.setenv("DRAFTPROOF_OFFLINE", "1")
    places = {
        "TRUNCATED": lambda: _truncated(tiny_model, tmp_path),
        "GOLDEN": lambda: str(Path(__file__).parents[1] / "data" / "golden" / "full"),
    }
    filled = [places[word]() if word in places else word for word in arguments]
    model = [] if "--model" in filled else ["--model", tiny_model]
    done = run("generate", *filled, *model)
    assert done.status == 2, done
    assert not done.out
    first, second = done.err.strip().splitlines()[-2:]
    found = re.match(r"error\[(DP\d{3})\] ", first)
    assert found is not None, done.err
    assert found[1].startswith(code)
    assert second == f"hint: draftproof explain {found[1]}"


def _endless(model: str) -> subprocess.Popen[bytes]:
    """A run that takes long enough to be disturbed."""
    length = ("--min-tokens", "4000", "--max-tokens", "4000")
    sampling = (*length, "--temperature", "2", "--seed", "1", "--drafter", "none")
    program = [sys.executable, "-m", "draftproof.cli", "generate", "Hello", "--model", model, *sampling]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_hear_ctrl_c)


def _hear_ctrl_c() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so does all that it starts in turn."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_with_130_and_no_traceback(tiny_model: str) -> None:
    process = _endless(tiny_model)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err


def test_a_reader_that_leaves_is_no_accident(tiny_model: str) -> None:
    process = _endless(tiny_model)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 141, err
    assert not err


def _on_a_terminal(arguments: list[str], **environment: str) -> tuple[int, str]:
    """Run the command with a terminal for all its streams; returns its status and what the terminal got."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - the child becomes another program
        program = [sys.executable, "-m", "draftproof.cli", *arguments]
        os.execve(sys.executable, program, {**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment})
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # Linux reports the end of the child in this way.
            break
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def _letters(text: str) -> str:
    return "".join(character for character in text if " " < character < "\x7f")


def test_a_model_cannot_steer_the_terminal() -> None:
    from draftproof.cli.show import _VISIBLE

    assert "a\x1b[2J\x07\r\x9b\tb\n".translate(_VISIBLE) == "a␛[2J␇␍\ufffd\tb\n"


@pytest.mark.parametrize(("environment", "style"), [({}, "32"), ({"NO_COLOR": "1"}, "4")])
def test_a_terminal_shows_which_tokens_were_drafted(
    run: Run, tiny_model: str, environment: dict[str, str], style: str
) -> None:
    arguments = ["generate", "Hello", "--model", tiny_model, "--max-tokens", "60", "--draft-mode", "fixed=7"]
    document = json.loads(run(*arguments, "--json").out)
    assert document["stats"]["accepted_tokens"] > 0
    status, shown = _on_a_terminal(arguments, **environment)
    assert status == 0
    assert "accepted draft tokens" in shown.splitlines()[0]
    body = shown.split("\n", 1)[1]
    assert f"\x1b[{style}m" in body
    assert _letters(re.sub(r"\x1b\[[\d;]*m", "", body)).startswith(_letters(document["text"]))
