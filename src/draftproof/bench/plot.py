"""The results as a picture: speed of every cell, and what became of draft tokens by their place in the block."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftproof.bench.document import Results
from draftproof.bench.figures import Cell, ModeFigures
from draftproof.bench.options import OFF
from draftproof.errors import RequestError

# Blue, orange, green, vermilion, purple, sky: told apart by people who see colours otherwise (Okabe and Ito 2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_LINES = ("-", "--", ":", "-.")


def require_matplotlib() -> None:
    """Raises `RequestError` DP475 where there is no matplotlib."""
    if find_spec("matplotlib") is None:
        raise RequestError("DP475", "a plot needs matplotlib: pip install 'draftproof[bench]'")


def write_plot(path: Path, results: Results) -> None:
    """Draw the results as a PNG, whatever the name ends with.

    Raises:
        RequestError: DP475, matplotlib is missing; DP476, the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = [cell for cell in results.cells if cell.modes]
    figure = Figure(figsize=(max(10.0, 5.0 + 0.9 * len(cells)), 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    speed, acceptance = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_speed(speed, cells)
    _draw_acceptance(acceptance, cells)
    setup = results.setup
    figure.suptitle(
        f"{setup.model} ({setup.dtype}), drafter {setup.drafter}, {setup.threads} threads, {setup.processor}",
        fontsize=10,
    )
    try:
        figure.savefig(path, format="png", dpi=150)
    except OSError as error:
        raise RequestError("DP476", f"cannot write {path}: {error.strerror}") from error


def _draw_speed(axes: Any, cells: list[Cell]) -> None:
    modes = _modes(cells)
    width = 0.8 / max(1, len(modes))
    for place, mode in enumerate(modes):
        bars = [
            (x, figures) for x, cell in enumerate(cells) for figures in cell.modes if figures.mode == mode
        ]
        known = [(x, figures) for x, figures in bars if figures.tokens_per_second is not None]
        shift = (place - (len(modes) - 1) / 2) * width
        speeds = [figures.tokens_per_second for _, figures in known]
        axes.bar(
            [x + shift for x, _ in known],
            [speed.median for speed in speeds if speed],
            width,
            label=mode,
            color=_COLOURS[place % len(_COLOURS)],
            yerr=[
                [speed.median - speed.low for speed in speeds if speed],
                [speed.high - speed.median for speed in speeds if speed],
            ],
            error_kw={"elinewidth": 1, "capsize": 2},
        )
        for x, figures in known:
            if figures.speed_over_off is not None and figures.tokens_per_second is not None:
                axes.annotate(
                    f"{figures.speed_over_off.median:.2f}x",
                    (x + shift, figures.tokens_per_second.high),
                    ha="center",
                    va="bottom",
                    fontsize=7,
                )
    axes.set_xticks(range(len(cells)), [_name(cell) for cell in cells], fontsize=8)
    axes.set_ylabel("tokens per second, decoding")
    axes.set_title("Speed (median and its interval; number: ratio to off)", fontsize=10)
    axes.margins(y=0.12)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    if modes:
        axes.legend(fontsize=8)


def _draw_acceptance(axes: Any, cells: list[Cell]) -> None:
    drafting = [mode for mode in _modes(cells) if mode != OFF]
    kinds = list(dict.fromkeys((cell.group, cell.temperature) for cell in cells))
    drawn, longest = False, 1
    for number, (group, temperature) in enumerate(kinds):
        for place, mode in enumerate(drafting, 1):
            chosen = [
                figures
                for cell in cells
                if (cell.group, cell.temperature) == (group, temperature)
                for figures in cell.modes
                if figures.mode == mode
            ]
            kept = _kept(chosen)
            if not kept:
                continue
            drawn, longest = True, max(longest, len(kept))
            axes.plot(
                range(1, len(kept) + 1),
                kept,
                _LINES[number % len(_LINES)],
                marker=".",
                color=_COLOURS[place % len(_COLOURS)],
                label=f"{mode}, {group}, T={temperature:g}",
            )
    axes.set_xlabel("place in the block")
    axes.set_ylabel("share of verified draft tokens that were kept")
    axes.set_ylim(0, 1)
    axes.set_xlim(0.5, longest + 0.5)
    axes.set_xticks(range(1, longest + 1, max(1, longest // 8)))
    axes.set_title("Acceptance", fontsize=10)
    axes.grid(alpha=0.3)
    if drawn:
        axes.legend(fontsize=7)
    else:
        axes.text(0.5, 0.5, "nothing was drafted", transform=axes.transAxes, ha="center")


def _kept(chosen: list[ModeFigures]) -> list[float]:
    """Share kept at each place, over cells that differ only in their batch size."""
    places = max((len(figures.drafted_by_position) for figures in chosen), default=0)
    shares = []
    for place in range(places):
        here = [figures for figures in chosen if place < len(figures.drafted_by_position)]
        drafted = sum(figures.drafted_by_position[place] for figures in here)
        if not drafted:
            break
        shares.append(sum(figures.accepted_by_position[place] for figures in here) / drafted)
    return shares


def _modes(cells: list[Cell]) -> list[str]:
    return list(dict.fromkeys(figures.mode for cell in cells for figures in cell.modes))


def _name(cell: Cell) -> str:
    how = f"T={cell.temperature:g}" if cell.temperature > 0 else "greedy"
    return f"{cell.group}\nbatch {cell.batch}\n{how}"
