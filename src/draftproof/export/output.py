"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftproof.errors import RequestError


def check_output(out: Path, drafter: Path, overwrite: bool, is_folder: bool) -> None:
    """Refuse, before anything is read or computed, an output path that cannot be used.

    Raises:
        RequestError: DP534.
    """
    if out.resolve() == drafter.resolve():
        raise RequestError("DP534", f"{out} is the drafter itself; write the export somewhere else")
    if not out.absolute().parent.is_dir():
        raise RequestError("DP534", f"cannot write {out}: {out.absolute().parent} is not a folder")
    if not out.exists():
        return
    if out.is_dir() != is_folder:
        raise RequestError(
            "DP534",
            f"{out} is {'a folder, and the export is a file' if out.is_dir() else 'a file, and the export is a folder'}",
        )
    if not overwrite and (not is_folder or any(out.iterdir())):
        raise RequestError(
            "DP534", f"{out} is there already; name another place, or write over it with --overwrite"
        )


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A fresh folder beside `out` to write in. On a clean exit its files take their places, each by one rename.

    A folder `out` that does not exist becomes the staged folder itself. In one that exists only files of the same
    names are replaced. Use `staged_file` where `out` is a file.

    Raises:
        RequestError: DP534, the disk or its permissions.
    """
    with _writing(out), _scratch(out) as scratch:
        yield scratch
        scratch.chmod(0o755)
        for file in scratch.iterdir():
            file.chmod(0o644)  # the writer of safetensors makes private files; an export is to be shared
        if not out.exists():
            os.replace(scratch, out)
            return
        for file in sorted(scratch.iterdir(), reverse=True):  # weights before the config that announces them
            os.replace(file, out / file.name)


@contextmanager
def staged_file(out: Path) -> Iterator[Path]:
    """A path beside `out` to write to, on the same disk; on a clean exit the file takes `out`'s place.

    Raises:
        RequestError: DP534, the disk or its permissions.
    """
    with _writing(out), _scratch(out) as scratch:
        yield scratch / out.name
        os.replace(scratch / out.name, out)


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError("DP534", f"cannot write {out}: {error.strerror or error}") from error
