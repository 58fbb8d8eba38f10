"""How far a long stage has come, and a bar that shows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class StageProgress:
    """Where a stage is.

    Attributes:
        stage: what is being done, in words.
        done, total: of its pieces (answers, responses), those found done at the start included.
        found: pieces that an earlier run had done.
        tokens: worked through by this run.
        seconds: this run has taken.
    """

    stage: str
    done: int
    total: int
    found: int
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of this run; 0 before the first."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before there is one."""
        mine = self.done - self.found
        return self.seconds / mine * (self.total - self.done) if mine > 0 else None


Progress = Callable[[StageProgress], None]
"""Told every so often how far a stage is."""


def silent(progress: StageProgress) -> None:
    """Shows nothing."""


@contextmanager
def showing_stage(wanted: bool | None = None) -> Iterator[Progress]:
    """A bar on standard error for one stage: pieces done, tokens a second, time left.

    Args:
        wanted: whether to show it; None: on a terminal.
    """
    show = sys.stderr.isatty() if wanted is None else wanted
    if not show:
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=None, rate="", left="")

        def show_progress(now: StageProgress) -> None:
            left = now.seconds_left
            bars.update(
                task,
                description=now.stage,
                completed=now.done,
                total=now.total,
                rate=f"{now.tokens_per_second:,.0f} tok/s",
                left="" if left is None else f"{as_time(left)} left",
            )

        yield show_progress


def as_time(seconds: float) -> str:
    """`45s`, `12m 05s` or `3h 20m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
