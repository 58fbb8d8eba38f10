"""`draftproof bench`: workloads measured on the user's own machine, drafting on and off."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.exits import Debug, coded
from draftproof.cli.generate import drafter_source, hide_loading_bars
from draftproof.cli.options import DrafterName, TrustRemoteCode
from draftproof.errors import RequestError

if TYPE_CHECKING:
    from draftproof.bench import Results
    from draftproof.bench.suite import Watcher


@coded
def bench(
    model: Annotated[str, typer.Argument(help="Known name, folder, or hub id.")] = "smollm2-135m",
    drafter: DrafterName = "auto",
    dtype: Annotated[str, typer.Option(help="As in generate.")] = "auto",
    block_size: Annotated[int | None, typer.Option(help="Tokens per step: anchor and drafts.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON Lines file with `prompt` and `group`; a built-in set without.")
    ] = None,
    groups: Annotated[
        str, typer.Option(help="Groups of prompts, with commas; mixed: all in turn; all: each, and mixed.")
    ] = "mixed",
    batch: Annotated[str, typer.Option(help="Numbers of requests at once, with commas.")] = "1,4,16",
    modes: Annotated[
        str | None, typer.Option(help="Draft modes, with commas: off, auto, fixed=N. off,auto without.")
    ] = None,
    temperature: Annotated[str, typer.Option(help="Temperatures, with commas; 0 is greedy.")] = "0,0.8",
    top_p: Annotated[float, typer.Option(help="Of sampled requests.")] = 0.95,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of each output.")] = 64,
    rounds: Annotated[
        int, typer.Option(help="Runs of each mode in each cell; six or more give 95% intervals.")
    ] = 6,
    seed: Annotated[int, typer.Option(help="Of the first request.")] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on to --max-tokens past the model's own end.")
    ] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Keep results in this file, and go on from it.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw speed and acceptance into this PNG.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    debug: Debug = False,
) -> None:
    """Measure speed, latency, acceptance and memory, drafting off and on, in interleaved runs.

    With --json every cell is kept as soon as it is measured: after Ctrl-C, the same command goes on from there.
    """
    from draftproof.bench import BenchInterrupted, BenchOptions, read_prompts, run_bench, workloads
    from draftproof.bench.memory import resident_mib
    from draftproof.engine import LLM

    source = drafter_source(drafter, model)
    options = BenchOptions(
        batches=tuple(_whole_numbers(batch)),
        modes=tuple(_listed(modes)) if modes is not None else ("off", "auto") if source else ("off",),
        temperatures=tuple(_numbers(temperature)),
        max_tokens=max_tokens,
        rounds=rounds,
        seed=seed,
        top_p=top_p,
        ignore_eos=ignore_eos,
    )
    texts, wanted = read_prompts(prompts), _listed(groups)
    workloads(texts, wanted)
    _check_outputs(json_path, plot)
    hide_loading_bars()
    before = resident_mib()
    llm = LLM(
        model,
        source,
        dtype=dtype,
        block_size=block_size,
        draft_mode="off",  # every mode gets engines of its own
        trust_remote_code=trust_remote_code,
    )
    interrupted = False
    with _progress() as watcher:
        try:
            results = run_bench(
                llm,
                texts,
                options,
                groups=wanted,
                dtype=dtype,
                json_path=json_path,
                resident_before_mib=before,
                resident_loaded_mib=resident_mib(),
                watcher=watcher,
            )
        except BenchInterrupted as stopped:
            results, interrupted = stopped.results, True
    _show(results)
    if plot is not None and results.cells:
        from draftproof.bench.plot import write_plot

        write_plot(plot, results)
    if interrupted:
        raise KeyboardInterrupt


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(
            "DP472", f"batch: expected whole numbers >= 1 with commas between them, got {text!r}"
        ) from None


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(
            "DP472", f"temperature: expected numbers with commas between them, got {text!r}"
        ) from None


def _check_outputs(json_path: Path | None, plot: Path | None) -> None:
    """What would fail after an hour of measuring should fail now."""
    for path in (json_path, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise RequestError("DP476", f"cannot write {path}: no such folder")
    if plot is not None:
        from draftproof.bench.plot import require_matplotlib

        require_matplotlib()


@contextmanager
def _progress() -> Iterator[Watcher]:
    """A bar on standard error, where somebody looks."""
    if not sys.stderr.isatty():
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda label, done, total: bar.update(task, description=label, completed=done, total=total)


def _show(results: Results) -> None:
    from rich.console import Console

    from draftproof.bench.tables import drafting_table, speed_table, summary_line

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)  # a file has no edge to wrap at
    console.print(summary_line(results), soft_wrap=True)
    for table in (speed_table(results), drafting_table(results)):
        console.print(table)
