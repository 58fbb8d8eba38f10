"""The results as tables for a terminal."""

from __future__ import annotations

from rich.table import Table

from draftproof.bench.document import Results
from draftproof.bench.figures import Cell, ModeFigures
from draftproof.bench.spread import Percentiles, Spread

NOTHING = "-"


def speed_table(results: Results) -> Table:
    """Speed and latency, a row for every mode of every cell."""
    table = _table(
        "speed",
        (
            "tok/s",
            "over off",
            "95% interval",
            "prompt tok/s",
            "first token ms",
            "between tokens ms",
            "ms a token",
        ),
        caption="medians; first token, between tokens and a token: 50/90/99%",
    )
    for cell in results.cells:
        for mode in cell.modes:
            ratio = mode.speed_over_off
            table.add_row(
                *_place(cell, mode),
                _median(mode.tokens_per_second, 1),
                _median(ratio, 3),
                _interval(ratio),
                _median(mode.prompt_tokens_per_second, 0),
                _percentiles(mode.first_token_ms),
                _percentiles(mode.inter_token_ms),
                _percentiles(mode.per_token_ms),
            )
        table.add_section()
    return table


def drafting_table(results: Results) -> Table:
    """How it was drafted, where the time of a step went, and memory."""
    table = _table(
        "drafting and steps",
        ("tau", "drafts", "kept at 1, 2, ... %", "draft/target/verify/commit/other %", "peak MiB", "tokens"),
        caption="tau: tokens a step and sequence; drafts: mean draft length; verify: with sampling; tokens: as without drafting?",
    )
    for cell in results.cells:
        for mode in cell.modes:
            table.add_row(
                *_place(cell, mode),
                _number(mode.acceptance_length, 2),
                f"{mode.mean_draft_length:.1f}",
                _kept(mode),
                _shares(mode),
                _number(mode.peak_mib, 0),
                {True: "same", False: "[red]DIFFER[/red]", None: NOTHING}[mode.same_tokens],
            )
        table.add_section()
    return table


def summary_line(results: Results) -> str:
    """What was measured, in one line."""
    setup = results.setup
    memory = ""
    if results.resident_before_mib is not None and results.resident_loaded_mib is not None:
        memory = (
            f"; memory {results.resident_before_mib:.0f} MiB with libraries, "
            f"{results.resident_loaded_mib:.0f} MiB with models"
        )
    partial = sum(not cell.complete for cell in results.cells)
    broken = f"; {partial} cell not complete" if partial else ""
    return (
        f"{setup.model} ({setup.dtype}: {setup.computed_in}), drafter {setup.drafter}, {setup.rounds} rounds of "
        f"{setup.max_tokens} tokens, {setup.threads} threads, {setup.processor}{memory}{broken}"
    )


def _table(title: str, columns: tuple[str, ...], caption: str) -> Table:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for name in ("group", "batch", "temp", "mode"):
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _place(cell: Cell, mode: ModeFigures) -> tuple[str, str, str, str]:
    mark = "" if cell.complete else f" ({cell.rounds} rounds)"
    return cell.group, str(cell.batch), f"{cell.temperature:g}", mode.mode + mark


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _median(spread: Spread | None, digits: int) -> str:
    return NOTHING if spread is None else f"{spread.median:.{digits}f}"


def _interval(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    weak = "" if spread.coverage >= 0.95 else f" ({100 * spread.coverage:.0f}%)"
    return f"{spread.low:.3f} to {spread.high:.3f}{weak}"


def _percentiles(values: Percentiles | None) -> str:
    return NOTHING if values is None else f"{values.p50:.1f}/{values.p90:.1f}/{values.p99:.1f}"


def _kept(mode: ModeFigures) -> str:
    shown = [f"{100 * share:.0f}" for share in mode.kept_by_position[:7]]
    return " ".join(shown) or NOTHING


def _shares(mode: ModeFigures) -> str:
    shares = mode.shares
    if shares is None:
        return NOTHING
    parts = (shares.draft, shares.target, shares.verify, shares.commit, shares.other)
    return "/".join(f"{100 * part:.1f}" for part in parts)
