"""A bar for many prompts, where somebody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FEW = 8
"""Up to so many prompts there is no bar unless asked for."""


@contextmanager
def showing_progress(count: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """A function to call after each of `count` requests; `wanted` None: a bar on a terminal, for more than a few."""
    show = (sys.stderr.isatty() and count > FEW) if wanted is None else wanted
    if not show:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("requests", total=count)
        yield lambda: bar.advance(task)
