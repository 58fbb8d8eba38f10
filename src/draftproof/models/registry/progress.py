"""How the registry tells a person what it is busy with. Everything goes to stderr, never to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]
"""Takes the number of bytes (or steps) done so far."""


class Progress(Protocol):
    """What the registry reports to."""

    def phase(self, text: str, total: int | None = None) -> AbstractContextManager[Advance]:
        """One stretch of work; `total` in bytes where it is known, None for a spinner."""
        ...

    def note(self, text: str) -> None:
        """One line worth reading."""
        ...


class SilentProgress:
    """Says nothing."""

    @contextmanager
    def phase(self, text: str, total: int | None = None) -> Iterator[Advance]:
        yield lambda done: None

    def note(self, text: str) -> None:
        return None


class ConsoleProgress:
    """A bar or a spinner on a terminal; elsewhere one line at the start and one at the end of each phase."""

    def phase(self, text: str, total: int | None = None) -> AbstractContextManager[Advance]:
        if not sys.stderr.isatty():
            return _plain_phase(text, total)
        return _bar_phase(text, total) if total is not None else _spinner_phase(text)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def _plain_phase(text: str, total: int | None) -> Iterator[Advance]:
    size = "" if total is None else f" ({total / 1e6:.1f} MB)"
    print(f"{text}{size} ...", file=sys.stderr, flush=True)
    begin = time.monotonic()
    yield lambda done: None
    print(f"{text}: done in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)


@contextmanager
def _bar_phase(text: str, total: int | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def _spinner_phase(text: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(file=sys.stderr)) as bar:
        bar.add_task(text, total=None)
        yield lambda done: None
