"""Where a run can go on from: everything that changes from step to step, written whole or not at all.

What is drawn at random during training follows from the seed and the number of the step (`loop`), so that weights, optimizer and
a few counters are all there is to keep: no generator's state, no place in the data.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftproof.errors import DraftproofWarning, RequestError

if TYPE_CHECKING:
    from accelerate import Accelerator

KEPT = 2
"""Checkpoints on disk: one more than the newest, should that one turn out broken."""
PROGRESS = "progress.json"
_PREFIX = "step-"


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        step: optimizer steps done.
        seconds: spent in training, evaluation during it included, over all calls.
        evaluated_at, evaluated_seconds: step and seconds of the last evaluation.
    """

    step: int = 0
    seconds: float = 0.0
    evaluated_at: int = 0
    evaluated_seconds: float = 0.0


class Checkpoints:
    """Checkpoints of one run in a folder, ``step-00000120`` and so on.

    Args:
        folder: made when needed.
        accelerator: holds model and optimizers, and knows how they are spread over processes. All of them call every method.
    """

    def __init__(self, folder: Path, accelerator: Accelerator) -> None:
        self.folder = folder
        self._accelerator = accelerator

    def save(self, progress: Progress) -> None:
        """Write a checkpoint, then remove those that are no longer kept.

        Raises:
            RequestError: DP526, the folder cannot be written.
        """
        final = self.folder / f"{_PREFIX}{progress.step:08d}"
        half = self.folder / f".half-{progress.step:08d}"
        main = self._accelerator.is_main_process
        try:
            if main:
                shutil.rmtree(half, ignore_errors=True)
                half.mkdir(parents=True)
            self._accelerator.wait_for_everyone()
            self._accelerator.save_state(str(half))
            self._accelerator.wait_for_everyone()
            if main:
                _finish(half, final, progress)
                self._tidy()
        except OSError as error:
            raise RequestError("DP526", f"cannot write {final}: {error.strerror or error}") from error
        self._accelerator.wait_for_everyone()

    def load(self) -> Progress | None:
        """Set model and optimizers to the newest checkpoint that can be read; None when there is none.

        Raises:
            RequestError: DP523, there are checkpoints, and none can be read.
        """
        found = self.there()
        for path in reversed(found):
            try:
                self._accelerator.load_state(str(path))
                return _read_progress(path)
            except Exception as error:  # torch and safetensors raise what they like for half a file
                first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
                warnings.warn(
                    f"{path} cannot be read, going back: {first_line}", DraftproofWarning, stacklevel=2
                )
        if found:
            raise RequestError(
                "DP523",
                f"none of the checkpoints in {self.folder} can be read: remove the folder to train from the start",
            )
        return None

    def there(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob(f"{_PREFIX}*") if (path / PROGRESS).is_file())

    def _tidy(self) -> None:
        for path in [*self.there()[:-KEPT], *self.folder.glob(".half-*")]:
            shutil.rmtree(path, ignore_errors=True)


def newest_progress(folder: Path) -> Progress | None:
    """What the newest checkpoint says of itself, without loading it; None when there is none."""
    for path in sorted(folder.glob(f"{_PREFIX}*"), reverse=True):
        try:
            return _read_progress(path)
        except (OSError, ValueError, TypeError):
            continue
    return None


def _finish(half: Path, final: Path, progress: Progress) -> None:
    """The counters go in last, and the rename makes it count."""
    (half / PROGRESS).write_text(json.dumps(asdict(progress)), encoding="utf-8")
    for path in half.rglob("*"):
        if path.is_file():
            _sync(path)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(half, final)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _read_progress(path: Path) -> Progress:
    return Progress(**json.loads((path / PROGRESS).read_text(encoding="utf-8")))


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, then put it there in one piece.

    Raises:
        RequestError: DP526, it cannot be written.
    """
    half = path.with_name(f".half-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(half)
        _sync(half)
        os.replace(half, path)
    except OSError as error:
        raise RequestError("DP526", f"cannot write {path}: {error.strerror or error}") from error
