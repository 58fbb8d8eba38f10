"""The end of a server, in a process of its own with real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from draftproof.errors import ServerError
from draftproof.server.lifecycle import address_of, open_port

TESTS = Path(__file__).parents[1]
SCRIPT = """
import sys
import torch
from draftproof import AsyncEngine
from draftproof.server.app import create_app
from draftproof.server.lifecycle import address_of, open_port, run_server
from draftproof.server.settings import ServerSettings
from support.serving import drafting_llm
torch.set_num_threads(1)
settings = ServerSettings(port=0, grace_s=float(sys.argv[1]), served_model_names=("tiny",))
bound = open_port(settings.host, settings.port)
engine = AsyncEngine(drafting_llm(None))
app = create_app(engine, settings)
sys.exit(run_server(app, engine, settings, bound, lambda: print("at", address_of(bound), flush=True)))
"""
# Long enough to be under way when the signal comes, far below the grace time where that is not the point.
BODY: dict[str, Any] = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 4}


@contextmanager
def server(grace: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves the tiny model, and its address."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(grace)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            said = (re.match(r"at (http\S+)", line) for line in process.stdout)
            found = next(filter(None, said), None)
            assert found, "the server did not start"
            yield process, found[1]
        finally:
            process.kill()


class Reader:
    """Reads a stream in a thread; `begun` is set with the first chunk."""

    def __init__(self, url: str, **more: Any) -> None:
        self.events: list[str] = []
        self.broken: Exception | None = None
        self._thread = Thread(target=self._read, args=(url, {**BODY, **more}), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self.events and not self.broken and time.monotonic() < deadline:
            time.sleep(0.005)
        assert self.events, self.broken

    def _read(self, url: str, body: dict[str, Any]) -> None:
        try:
            with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            self.broken = error

    def done(self) -> list[str]:
        """All events, once the stream is at its end."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.events


def until_draining(url: str) -> httpx.Response:
    for _ in range(400):
        answer = httpx.get(url + "/ready")
        if answer.status_code == 503:
            return answer
        time.sleep(0.005)
    raise AssertionError("it does not drain")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_streams_finish_and_new_requests_get_503(number: signal.Signals) -> None:
    with server(grace=60) as (process, url):
        assert httpx.get(url + "/ready").status_code == 200
        reader = Reader(url)
        process.send_signal(number)
        ready = until_draining(url)
        assert ready.json()["error"]["code"] == "DP606"
        refused = httpx.post(url + "/v1/completions", json={"prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "DP606")
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(url + "/health").status_code == 200  # it need not be started again
        events = reader.done()
        assert events[-1] == "[DONE]"
        reasons = [
            choice["finish_reason"] for event in events[:-1] for choice in json.loads(event)["choices"]
        ]
        assert reasons.count("length") == 4
        assert process.wait(30) == 0


def test_what_exceeds_the_grace_time_is_ended_and_told() -> None:
    with server(grace=0.1) as (process, url):
        reader = Reader(url, n=32)
        process.terminate()
        events = reader.done()
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["error"]["code"] == "DP641"
        assert process.wait(30) == 0


def test_a_second_signal_ends_it_at_once() -> None:
    with server(grace=60) as (process, url):
        reader = Reader(url, n=32)
        process.terminate()
        until_draining(url)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        assert "[DONE]" not in reader.done()


def test_an_idle_server_ends_without_waiting() -> None:
    with server(grace=600) as (process, url), httpx.Client() as kept_alive:
        assert kept_alive.get(url + "/health").status_code == 200
        process.terminate()
        assert process.wait(30) == 0


def test_an_address_is_taken_before_the_model_is_loaded_but_nobody_gets_in() -> None:
    with open_port("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address_of(bound) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        bound.listen()
        with pytest.raises(ServerError) as caught:
            open_port("127.0.0.1", port)
        assert caught.value.code == "DP611"
    with pytest.raises(ServerError) as caught:
        open_port("no-such-host.invalid", 80)
    assert caught.value.code == "DP611"


def test_options_are_checked_before_the_model_is_looked_for(tmp_path: Path) -> None:
    import typer
    from typer.testing import CliRunner

    from draftproof.cli.serve import serve

    app = typer.Typer()
    app.command()(serve)
    for options, code in (
        (["--max-body", "8MB"], "DP610"),
        (["--port", "70000"], "DP610"),
        (["--log-level", "loud"], "DP610"),
        (["--api-key-file", str(tmp_path / "none")], "DP612"),
        (["--kv-cache-memory", "much"], "DP441"),
    ):
        done = CliRunner().invoke(app, ["no-such-model-anywhere", *options])
        assert done.exit_code == 2
        assert code in done.output
