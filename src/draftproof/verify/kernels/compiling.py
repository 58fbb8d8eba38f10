"""How numba's functions are compiled here, and when machine code on disk is renewed.

Compiling takes seconds, so machine code is kept, in numba's own places (`NUMBA_CACHE_DIR`, else `__pycache__` beside the
file, else the user's cache folder). Three things are done otherwise than numba does them:

* Numba renews machine code when the file of the function itself changes, but not when a file does from which the
  function calls something. Here all files of a folder carry one stamp, made of their text: when one changes, all is
  compiled anew.
* Numba numbers the pieces of machine code of a function in an index. Two processes that compile for different types at the
  same time may both take the same number, and from then on one runs the other's code. Here a piece is named after what it
  was compiled from and for, and there is no index.
* The stamp is taken when this process reads the code, not when it first compiles some of it: the files may have changed since.

What a piece is named after includes the types, the processor and its abilities (`target_features`), the numba version and
the stamp, so a cache that several machines share holds code for each.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.core import caching
from numba.core.registry import cpu_target


def stamp_of(folder: Path) -> str:
    """A fingerprint of the names and the text of the Python files of a folder, hexadecimal."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        text = file.read_bytes()
        digest.update(f"{file.name}:{len(text)}:".encode())
        digest.update(text)
    return digest.hexdigest()


class _Chosen(caching.UserProvidedCacheLocator):
    """The folder in `NUMBA_CACHE_DIR`, where that is set."""


class _Beside(caching.InTreeCacheLocator):
    """`__pycache__` next to the file."""


class _OfUser(caching.UserWideCacheLocator):
    """The user's cache folder, where the code itself lies in a place that cannot be written to."""


class _Format(caching.CompileResultCacheImpl):
    _locator_classes = (_Chosen, _Beside, _OfUser)


class CodeFiles(caching.IndexDataCacheFile):
    """Pieces of machine code of one function, each in a file named after what it was made from and for.

    Args:
        folder: where they lie.
        base: what the names begin with: one function's.
        stamp: of the source.
    """

    def __init__(self, folder: str, base: str, stamp: str) -> None:
        super().__init__(folder, base, stamp)
        self._base = base

    def save(self, key: object, data: object) -> None:
        self._save_data(self.name_of(key), data)
        for name in os.listdir(self._cache_path):
            if name.startswith(f"{self._base}.") and not name.startswith(self._fresh):
                with contextlib.suppress(OSError):  # another process was quicker
                    os.unlink(self._data_path(name))

    def load(self, key: object) -> Any:
        try:
            return self._load_data(self.name_of(key))
        except OSError:
            return None

    def flush(self) -> None:
        """Nothing to forget: pieces are found by name."""

    def name_of(self, key: object) -> str:
        """The file's name for a key: types, processor, and the function's own code."""
        made_for = f"{numba.__version__} {self._source_stamp} {key!r}"
        return f"{self._fresh}{hashlib.sha256(made_for.encode()).hexdigest()[:24]}.nbc"

    @property
    def _fresh(self) -> str:
        return f"{self._base}.{self._source_stamp[:12]}."


class _Cache(caching.FunctionCache):
    _impl_class = _Format

    def __init__(self, function: Callable[..., Any], stamp: str) -> None:
        super().__init__(function)
        self._cache_file = CodeFiles(self._cache_path, self._impl.filename_base, stamp)


def compiler(folder: Path) -> Callable[..., Any]:
    """A `compiled(**options)` for the functions in the files of a folder.

    It is `njit` with options that all share (Python's lock is let go of; division by zero gives infinity and raises
    nothing, as numpy has it) and the cache that this file describes; without one where no folder can be written to.
    """
    stamp = stamp_of(folder)

    def compiled(**options):
        def decorate(function):
            dispatcher = njit(nogil=True, error_model="numpy", **options)(function)
            try:
                dispatcher._cache = _Cache(function, stamp)
            except RuntimeError:  # nowhere to keep it
                return dispatcher
            return dispatcher

        return decorate

    return compiled


@functools.cache
def target_features() -> frozenset[str]:
    """Abilities of the processor that is compiled for, in LLVM's words ("avx512vnni", ...).

    It is this machine's unless `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` say otherwise.
    """
    description: Any = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(word[1:] for word in description[2].split(",") if word.startswith("+"))
