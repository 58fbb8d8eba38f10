"""`draftproof prove`: the three promises, tried on the user's own model, drafter and machine."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.exits import Debug, coded
from draftproof.cli.generate import drafter_source, hide_loading_bars
from draftproof.cli.options import DrafterName, Dtype, Executor, TrustRemoteCode
from draftproof.errors import RequestError

if TYPE_CHECKING:
    from draftproof.audit.report import Report
    from draftproof.audit.watch import Watcher
    from draftproof.engine import LLM

prove = typer.Typer(
    name="prove",
    help="Run a promise on your own model, drafter and machine. Status 0: proven, 1: not proven.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Model = Annotated[str, typer.Option(help="Known name, folder, or hub id.")]
BlockSize = Annotated[int | None, typer.Option(help="Tokens per step: anchor and drafts.")]
Prompts = Annotated[
    Path | None, typer.Option(help="JSON Lines file with a field `prompt` a line; a built-in set without.")
]
Limit = Annotated[int, typer.Option(help="How many prompts at most; groups take turns.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of each output.")]
Seed = Annotated[int, typer.Option(help="Of the sampled requests.")]
Seconds = Annotated[float | None, typer.Option("--budget", help="Begin nothing new after so many seconds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@prove.command()
@coded
def lossless(
    model: Model = "smollm2-135m",
    drafter: DrafterName = "auto",
    dtype: Dtype = "auto",
    executor: Executor = "auto",
    block_size: BlockSize = None,
    prompts: Prompts = None,
    limit: Limit = 8,
    max_tokens: MaxTokens = 64,
    seed: Seed = 0,
    budget: Seconds = None,
    as_json: AsJson = False,
    trust_remote_code: TrustRemoteCode = False,
    debug: Debug = False,
) -> None:
    """The same tokens with the drafter on: alone, in a batch, cached, preempted, chunked; log-probabilities to the bit."""
    _check(limit=limit, max_tokens=max_tokens, budget=budget)
    from draftproof.audit import LosslessOptions, prove_lossless, read_prompts

    texts = read_prompts(prompts, limit)
    llm = _load(model, drafter, dtype, executor, block_size, trust_remote_code)
    with _progress(as_json) as watcher:
        report = prove_lossless(llm, texts, LosslessOptions(max_tokens, seed, budget), watcher)
    _finish(report, as_json)


@prove.command()
@coded
def speed(
    model: Model = "smollm2-135m",
    drafter: DrafterName = "auto",
    dtype: Dtype = "auto",
    executor: Executor = "auto",
    block_size: BlockSize = None,
    prompts: Prompts = None,
    limit: Limit = 16,
    max_tokens: MaxTokens = 64,
    batch: Annotated[str, typer.Option(help="Numbers of requests at once, with commas between.")] = "1,4,16",
    pairs: Annotated[int, typer.Option(help="Measurements with and without, per batch size.")] = 15,
    draft_mode: Annotated[str, typer.Option(help="What is held against off: auto or fixed=N.")] = "auto",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Seed = 0,
    budget: Seconds = None,
    as_json: AsJson = False,
    trust_remote_code: TrustRemoteCode = False,
    debug: Debug = False,
) -> None:
    """Never slower than without the drafter: interleaved pairs, the median of their ratio and its 95% interval."""
    _check(limit=limit, max_tokens=max_tokens, pairs=pairs, budget=budget)
    batches = _batches(batch)
    from draftproof.audit import SpeedOptions, prove_speed, read_prompts

    options = SpeedOptions(batches, pairs, max_tokens, draft_mode, seed, temperature, budget)
    texts = read_prompts(prompts, limit)
    llm = _load(model, drafter, dtype, executor, block_size, trust_remote_code)
    with _progress(as_json) as watcher:
        report = prove_speed(llm, texts, options, watcher)
    _finish(report, as_json)


@prove.command()
@coded
def whole(
    model: Model = "smollm2-135m",
    drafter: DrafterName = "auto",
    dtype: Dtype = "auto",
    executor: Executor = "auto",
    block_size: BlockSize = None,
    prompts: Prompts = None,
    limit: Limit = 2,
    max_tokens: MaxTokens = 48,
    seed: Seed = 0,
    only: Annotated[list[str] | None, typer.Option(help="One feature by name; may be repeated.")] = None,
    budget: Seconds = None,
    as_json: AsJson = False,
    trust_remote_code: TrustRemoteCode = False,
    debug: Debug = False,
) -> None:
    """Every feature of a request works the same with the drafter on: penalties, grammars, stops, streaming, aborts ..."""
    _check(limit=limit, max_tokens=max_tokens, budget=budget)
    from draftproof.audit import WholeOptions, prove_whole, read_prompts

    texts = read_prompts(prompts, limit)
    llm = _load(model, drafter, dtype, executor, block_size, trust_remote_code)
    with _progress(as_json) as watcher:
        report = prove_whole(llm, texts, WholeOptions(max_tokens, seed, budget, tuple(only or ())), watcher)
    _finish(report, as_json)


def _check(*, budget: float | None, **sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise RequestError("DP462", f"{name} must be a whole number >= 1, got {value}")
    if budget is not None and not (math.isfinite(budget) and budget > 0):
        raise RequestError("DP462", f"budget must be a number of seconds above 0, got {budget}")


def _batches(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise RequestError(
            "DP462", f"batch must be whole numbers >= 1 with commas between them, got {text!r}"
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def _load(
    model: str, drafter: str, dtype: str, executor: str, block_size: int | None, trust_remote_code: bool
) -> LLM:
    from draftproof.engine import LLM

    hide_loading_bars()
    return LLM(
        model,
        drafter_source(drafter, model),
        dtype=dtype,
        block_size=block_size,
        executor=executor,
        draft_mode="off",  # the audits make engines of their own, in the modes they need
        trust_remote_code=trust_remote_code,
    )


@contextmanager
def _progress(quiet: bool) -> Iterator[Watcher]:
    """A bar on standard error, where somebody looks."""
    from draftproof.audit.watch import nobody

    if quiet or not sys.stderr.isatty():
        yield nobody
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)

        def watch(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        yield watch


def _finish(report: Report, as_json: bool) -> None:
    """Print verdict and evidence; status 1 where the promise was not proven."""
    from draftproof.audit import as_document, as_table, as_text

    if as_json:
        typer.echo(json.dumps(as_document(report), indent=2, ensure_ascii=False))
    else:
        typer.secho(report.verdict, bold=True, fg="green" if report.proven else "red")
        typer.echo(as_text(as_table(report)))
    if not report.proven:
        raise typer.Exit(1)
