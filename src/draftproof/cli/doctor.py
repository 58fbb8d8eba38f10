"""`draftproof doctor`: why a drafter's proposals are not accepted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.exits import Debug, coded
from draftproof.cli.generate import drafter_source, hide_loading_bars
from draftproof.errors import RequestError

if TYPE_CHECKING:
    from draftproof.audit.watch import Watcher


@coded
def doctor(
    target: Annotated[str, typer.Option(help="Known name, folder, or hub id.")] = "smollm2-135m",
    drafter: Annotated[
        str, typer.Option(help="Folder or hub id of a DFlash checkpoint, or default.")
    ] = "default",
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON Lines file with a field `prompt` a line; a built-in set without."),
    ] = None,
    limit: Annotated[int, typer.Option(help="How many prompts, at least 4.")] = 12,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of each answer.")] = 64,
    raw: Annotated[bool, typer.Option("--raw", help="Put prompts as they are, no chat template.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="One kind of correction, such as taps or mask; may be repeated.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Of the target: auto, float32, bfloat16, int8 or int4.")
    ] = "auto",
    executor: Annotated[
        str, typer.Option(help="fused: one compiled call a pass; transformers: the model's own code; auto.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Find out why a drafter's proposals are not accepted, by trying what is plausible. Status 0: healthy, 1: not."""
    if limit < 1:
        raise RequestError("DP542", f"limit must be a whole number >= 1, got {limit}")
    from draftproof.audit import as_text, read_prompts
    from draftproof.audit.doctor import DoctorOptions, as_document, as_table, diagnose, load_pair

    options = DoctorOptions(max_tokens=max_tokens, raw=raw, only=tuple(only or ()))
    texts = read_prompts(prompts, limit)
    hide_loading_bars()
    pair = load_pair(
        target,
        drafter_source(drafter, target),
        dtype=dtype,
        executor=executor,
        trust_remote_code=trust_remote_code,
    )
    with _progress(as_json) as watcher:
        report = diagnose(pair, texts, options, watcher)
    if as_json:
        typer.echo(json.dumps(as_document(report), indent=2, ensure_ascii=False))
    else:
        typer.secho(report.verdict, bold=True, fg="green" if report.healthy else "red")
        typer.echo(as_text(as_table(report)))
    if not report.healthy:
        raise typer.Exit(1)


@contextmanager
def _progress(quiet: bool) -> Iterator[Watcher]:
    """A bar on standard error, where somebody looks."""
    if quiet or not sys.stderr.isatty():
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda label, done, total: bar.update(task, description=label, completed=done, total=total)
