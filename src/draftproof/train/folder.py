"""The folder a run works in, beside the drafter it ends with: one process at a time, one run for good."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from draftproof.errors import RequestError
from draftproof.train.checkpoints import write_whole
from draftproof.train.settings import differing


class RunFolder:
    """Names of everything in a run's folder.

    Args:
        path: the folder; made when needed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.responses = path / "responses.jsonl"
        self.features = path / "features"
        self.checkpoints = path / "checkpoints"
        self.drafters = path / "drafters"
        self.best = path / "best.json"
        self.final = path / "final.json"
        self.run = path / "run.json"
        self.data = path / "data.json"
        self.plot = path / "plot.png"

    @classmethod
    def beside(cls, out: Path) -> RunFolder:
        """Of the run that ends with the drafter `out`."""
        return cls(out.with_name(out.name + ".training"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out. The lock goes with this process, however it ends.

        Raises:
            RequestError: DP522, another process is in; DP526, the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(str(self.path / "lock"), timeout=0)
            lock.acquire()
        except Timeout:
            raise RequestError("DP522", f"another process is training in {self.path}") from None
        except OSError as error:
            raise RequestError("DP526", f"cannot write {self.path}: {error.strerror or error}") from error
        try:
            yield
        finally:
            self._remove_if_unused()
            lock.release()

    def _remove_if_unused(self) -> None:
        """A run that was refused before it began leaves nothing behind."""
        if [path.name for path in self.path.iterdir()] == ["lock"]:
            with suppress(OSError):  # an open file cannot be removed everywhere
                (self.path / "lock").unlink()
                self.path.rmdir()

    def empty(self) -> None:
        """Forget the run, all but the target's answers: they say themselves what they are answers to."""
        for path in (self.features, self.checkpoints, self.drafters):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.path.glob("*"):
            if path.is_file() and path.name not in ("lock", self.responses.name):
                path.unlink()
        shutil.rmtree(self.path / "tensorboard", ignore_errors=True)


def insist_same(path: Path, document: dict[str, Any]) -> None:
    """Write what a run is about, or check that it is still about the same.

    Raises:
        RequestError: DP521, it was about something else; DP523, the file cannot be read; DP526, or written.
    """
    document = json.loads(json.dumps(document))
    known = read_document(path)
    if known is None:
        write_document(path, document)
        return
    if other := differing(known, document):
        said = "; ".join(f"{name} was {known.get(name)!r}, is {document.get(name)!r}" for name in other[:4])
        raise RequestError(
            "DP521",
            f"{path.parent} holds another run: {said}; give this one another --out, or start over with --restart",
        )


def read_document(path: Path) -> dict[str, Any] | None:
    """A JSON object; None when there is no such file.

    Raises:
        RequestError: DP523, the file cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RequestError("DP523", f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise RequestError("DP523", f"{path} holds no JSON object")
    return document


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON object in one piece.

    Raises:
        RequestError: DP526, it cannot be written.
    """
    text = json.dumps(document, indent=1) + "\n"

    def fill(half: Path) -> None:
        half.write_text(text, encoding="utf-8")

    write_whole(path, fill)
