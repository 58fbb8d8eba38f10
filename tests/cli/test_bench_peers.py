"""`bench/peers`: the client against a server on this machine, and the whole script with the peers that every checkout has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

PEERS = Path(__file__).parents[2] / "bench" / "peers"
sys.path.insert(0, str(PEERS))

from clients import Dialect, Job, Timing, complete_all  # noqa: E402


class Completions(BaseHTTPRequestHandler):
    """Answers as an OpenAI-compatible server does: a chunk a token, then the usage. A prompt of one token is refused."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        prompt, count = asked["prompt"], asked["max_tokens"]
        self.send_response(400 if len(prompt) == 1 else 200)
        self.send_header("Connection", "close")
        self.end_headers()
        for place in range(count):
            choice = {"text": "" if place == 1 else "x", "finish_reason": None}
            self._send({"choices": [choice]})
        self._send({"choices": [{"text": "", "finish_reason": "length"}]})
        self._send({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": count}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, event: dict[str, object]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
    server.asked = []  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def test_the_client_counts_and_stamps_every_request() -> None:
    job = Job([[1, 2, 3], [4, 5]], ["one", "two"], 4)
    with serving() as server:
        timing = complete_all(server.server_address[1], Dialect("m", True, {"ignore_eos": True}), job)
        asked = server.asked  # type: ignore[attr-defined]
    assert timing.tokens == [4, 4]
    assert timing.prompt_tokens == [3, 2]
    assert all(0 < first <= last for first, last in zip(timing.first, timing.last, strict=True))
    assert sorted(str(one["prompt"]) for one in asked) == ["[1, 2, 3]", "[4, 5]"]
    assert all(one["temperature"] == 0 and one["ignore_eos"] is True for one in asked)


def test_a_server_that_takes_no_ids_gets_the_text() -> None:
    with serving() as server:
        complete_all(server.server_address[1], Dialect("m", False), Job([[1, 2]], ["text"], 1))
        assert server.asked[0]["prompt"] == "text"  # type: ignore[attr-defined]


def test_a_refusal_is_an_error() -> None:
    with serving() as server, pytest.raises(RuntimeError, match="status 400"):
        complete_all(server.server_address[1], Dialect("m", True), Job([[1], [1, 2]], ["", ""], 2))


def test_speeds_of_a_job() -> None:
    timing = Timing(first=[0.5, 1.0], last=[2.0, 3.0], tokens=[5, 5], prompt_tokens=[20, 30])
    assert timing.decode_tokens_per_second == pytest.approx(4.0)
    assert timing.total_tokens_per_second == pytest.approx(10 / 3)
    assert timing.prompt_tokens_per_second == pytest.approx(50.0)


def test_the_script_measures_who_is_there_and_names_who_is_not(tiny_model: str, tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    command = [
        sys.executable,
        str(PEERS / "run.py"),
        "--model",
        tiny_model,
        "--batch",
        "1,2",
        "--rounds",
        "1",
    ]
    command += ["--max-tokens", "4", "--prompt-tokens", "40", "--context", "256", "--threads", "1"]
    command += [
        "--dtype",
        "float32",
        "--llama-server",
        "not-there",
        "--vllm",
        "not-there",
        "--json",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "llama.cpp: skipped: no llama-server" in done.stderr
    assert "vllm: skipped: no interpreter 'not-there'" in done.stderr
    measured = json.loads(path.read_text())["peers"]
    assert set(measured) == {"draftproof float32", "transformers"}
    for outcome in measured.values():
        assert outcome["wrong_counts"] == 0
        assert outcome["peak_mib"] > 50
        assert {len(values) for values in outcome["values"].values()} == {1}
        assert len(outcome["values"]) == 2 * 3 + 1
        assert all(values[0] > 0 for values in outcome["values"].values())
    assert "draftproof float32: ratios within a round" in done.stdout
