"""The whole benchmark: every cell in every mode, kept as it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from draftproof import __version__
from draftproof.bench.cell import CellKey, CellRun, Contender, measure_cell
from draftproof.bench.document import Results, Setup, check_same_setup, read_results, write_results
from draftproof.bench.figures import Cell, summarised
from draftproof.bench.options import BenchOptions
from draftproof.bench.passes import Clock
from draftproof.bench.processor import processor_name
from draftproof.bench.prompts import MIXED, BenchPrompt, digest, workloads
from draftproof.engine import LLM
from draftproof.errors import RequestError
from draftproof.models.executor import precision_of

Watcher = Callable[[str, int, int], None]
"""Told what runs, how many rounds are done, and how many there are."""


def nobody(label: str, done: int, total: int) -> None:
    """A `Watcher` that looks away."""


class BenchInterrupted(KeyboardInterrupt):
    """Ctrl-C, with what had been measured until then.

    Attributes:
        results: complete cells, and the rounds of the one that was interrupted.
    """

    def __init__(self, results: Results) -> None:
        super().__init__()
        self.results = results


def run_bench(
    llm: LLM,
    prompts: Sequence[BenchPrompt],
    options: BenchOptions | None = None,
    *,
    groups: Sequence[str] = (MIXED,),
    dtype: str = "auto",
    json_path: Path | None = None,
    resident_before_mib: float | None = None,
    resident_loaded_mib: float | None = None,
    watcher: Watcher = nobody,
    clock: Clock = time.perf_counter,
) -> Results:
    """Measure all cells: groups x batch sizes x temperatures.

    With `json_path` every cell is on disk as soon as it is measured, an interrupted one with the rounds it has. Of a file that is
    there already the complete cells are kept, and not measured again.

    Args:
        llm: target and drafter.
        prompts: of all groups.
        options: how much.
        groups: whose; ``"mixed"`` is all in turn, ``"all"`` each of its own and mixed.
        dtype: as it was asked for; for the record.
        json_path: the results file.
        resident_before_mib, resident_loaded_mib: for the record.
        watcher: is told how far it is.
        clock: seconds.

    Raises:
        RequestError: DP471, a group that is not there; DP473, a mode needs a drafter and there is none; DP474, DP476, the results
            file; DP4xx, a prompt.
        BenchInterrupted: on Ctrl-C, after what was measured has been written.
    """
    options = options or BenchOptions()
    if llm.drafter is None and options.drafting_modes:
        raise RequestError(
            "DP473",
            f"mode {options.drafting_modes[0]!r} needs a drafter, and there is none: name one, or only 'off'",
        )
    chosen = workloads(prompts, groups)
    setup = _setup(llm, prompts, options, dtype)
    kept = _kept(json_path, setup)
    results = Results(setup, resident_before_mib, resident_loaded_mib, kept)
    done = {cell.key for cell in kept}
    todo = [key for key in _keys(chosen, options) if key not in done]
    try:
        if todo:
            _measure(llm, chosen, options, todo, results, json_path, watcher, clock)
    except KeyboardInterrupt:
        raise BenchInterrupted(results) from None
    return results


def _kept(path: Path | None, setup: Setup) -> list[Cell]:
    """Complete cells of a file that is there already."""
    if path is None or not path.exists():
        return []
    old = read_results(path)
    check_same_setup(path, old.setup, setup)
    return [cell for cell in old.cells if cell.complete]


def _keys(groups: Iterable[str], options: BenchOptions) -> list[CellKey]:
    return [
        CellKey(group, batch, temperature)
        for group in groups
        for batch in dict.fromkeys(options.batches)
        for temperature in dict.fromkeys(options.temperatures)
    ]


def _measure(
    llm: LLM,
    chosen: Mapping[str, Sequence[BenchPrompt]],
    options: BenchOptions,
    todo: Sequence[CellKey],
    results: Results,
    path: Path | None,
    watcher: Watcher,
    clock: Clock,
) -> None:
    most = max(key.batch for key in todo)
    contenders = [Contender.make(llm, mode, most) for mode in dict.fromkeys(options.modes)]
    each = (options.rounds + 1) * len(contenders)
    for number, key in enumerate(todo):
        run = CellRun(key)
        progress = _Progress(watcher, _label(key), number * each, len(todo) * each)
        try:
            measure_cell(run, contenders, chosen[key.group], options, progress.one_more, clock)
        finally:
            # After an error or an interrupt too: what was measured is kept.
            if any(run.paired.values()):
                results.cells.append(summarised(run))
            if path is not None and results.cells:
                write_results(path, results)


class _Progress:
    """Counts rounds for a watcher."""

    def __init__(self, watcher: Watcher, label: str, done: int, total: int) -> None:
        self._watcher, self._label, self._done, self._total = watcher, label, done, total
        watcher(label, done, total)

    def one_more(self) -> None:
        self._done += 1
        self._watcher(self._label, self._done, self._total)


def _label(key: CellKey) -> str:
    how = f"temperature {key.temperature:g}" if key.temperature > 0 else "greedy"
    return f"{key.group}, batch {key.batch}, {how}"


def _setup(llm: LLM, prompts: Sequence[BenchPrompt], options: BenchOptions, dtype: str) -> Setup:
    drafter = llm.drafter
    return Setup(
        version=__version__,
        model=llm.target.name,
        drafter="none" if drafter is None else drafter.name,
        dtype=dtype,
        computed_in=precision_of(llm.target),
        modes=list(dict.fromkeys(options.modes)),
        max_tokens=options.max_tokens,
        rounds=options.rounds,
        seed=options.seed,
        top_p=options.top_p,
        ignore_eos=options.ignore_eos,
        prompts=digest(prompts),
        max_draft_tokens=0 if drafter is None else drafter.max_draft_tokens,
        processor=processor_name(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )
