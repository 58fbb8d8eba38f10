"""What `draftproof train` shows while it runs: a bar on a terminal, a line now and then elsewhere; all on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from draftproof.train.bars import StageProgress, as_time
from draftproof.train.watch import Watch

if TYPE_CHECKING:
    from draftproof.train.estimate import Estimate
    from draftproof.train.evaluate import Evaluation
    from draftproof.train.record import StepRecord
    from draftproof.train.run import TrainReport

QUIET_SECONDS = 30.0
"""Between lines where nobody watches a bar."""
_WHOLE = 10_000


class Screen(Watch):
    """Shows a run.

    Args:
        console: for lines.
        bars: for bars; None: lines in their place.
    """

    def __init__(self, console: Console, bars: Progress | None) -> None:
        self._console, self._bars = console, bars
        self._stage = ""
        self._task = bars.add_task("loading", total=None, said="") if bars is not None else None
        self._said_at = time.perf_counter()
        self._first: tuple[float, float] | None = None

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def estimate(self, estimate: Estimate) -> None:
        table = Table(title="about what is left to do", title_justify="left", box=None, pad_edge=False)
        for name in ("stage", "of", "time", "disk"):
            table.add_column(name, justify="right" if name in ("time", "disk") else "left")
        for stage in estimate.stages:
            disk = f"{stage.disk / 2**20:,.0f} MiB" if stage.disk else ""
            table.add_row(stage.stage, stage.amount, as_time(stage.seconds), disk)
        table.add_row(
            "together", f"{estimate.passes:.1f} times through the data", as_time(estimate.seconds), ""
        )
        self._console.print(table)

    def stage(self, progress: StageProgress) -> None:
        rate = f"{progress.tokens_per_second:,.0f} tok/s" if progress.tokens else ""
        left = "" if progress.seconds_left is None else f"{as_time(progress.seconds_left)} left"
        said = "  ".join(part for part in (f"{progress.done}/{progress.total}", rate, left) if part)
        self._show(progress.stage, progress.done, progress.total, said)

    def step(self, record: StepRecord, done: float) -> None:
        if self._first is None:
            self._first = (done, record.seconds)
        share, seconds = done - self._first[0], record.seconds - self._first[1]
        left = f"{as_time(seconds / share * (1 - done))} left" if share > 0 else ""
        said = f"step {record.step}  loss {record.loss:.3f}  accepted {record.accepted:.2f}  {left}"
        self._show("training", round(done * _WHOLE), _WHOLE, said)

    def evaluation(self, evaluation: Evaluation, best: bool) -> None:
        groups = ", ".join(f"{group.group} {group.acceptance_length:.2f}" for group in evaluation.groups)
        mark = ", the best so far" if best else ""
        self.say(f"step {evaluation.step}: decodes {evaluation.mean:.2f} a step ({groups}){mark}")

    def _show(self, stage: str, done: int, total: int, said: str) -> None:
        if self._bars is not None and self._task is not None:
            if stage != self._stage:
                self._bars.reset(self._task)
            self._bars.update(self._task, description=stage, completed=done, total=total, said=said)
        elif stage != self._stage or time.perf_counter() - self._said_at >= QUIET_SECONDS:
            self._said_at = time.perf_counter()
            self.say(f"{stage}: {said}")
        self._stage = stage


@contextmanager
def showing_training() -> Iterator[Screen]:
    """A screen on standard error."""
    console = Console(stderr=True, highlight=False)
    if not sys.stderr.isatty():
        yield Screen(console, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield Screen(console, bars)


def show_report(report: TrainReport) -> None:
    """What came of a run, on standard output."""
    assert report.final is not None
    console = Console(highlight=False)
    console.print(
        f"{report.out}: the drafter of step {report.final.step}, the best by held-out acceptance, of "
        f"{report.progress.step} steps in {as_time(report.progress.seconds)}",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("held-out group")
    for name in ("prompts", "tokens", "steps", "acceptance length"):
        table.add_column(name, justify="right")
    for group in report.final.groups:
        counts = (group.prompts, group.tokens, group.steps)
        table.add_row(group.group, *map(str, counts), f"{group.acceptance_length:.2f}")
    table.add_row("mean of the groups", "", "", "", f"{report.final.mean:.2f}")
    console.print(table)
