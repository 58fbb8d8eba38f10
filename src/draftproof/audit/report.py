"""What an audit found, as a table for people and as one JSON object; both say the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftproof.audit.lossless import Case, LosslessReport
from draftproof.audit.speed import SpeedReport, SpeedRow
from draftproof.audit.whole import FeatureRow, WholeReport

Report = LosslessReport | SpeedReport | WholeReport

_DIFFERENCES_SHOWN = 8


@dataclass(frozen=True)
class Table:
    """Evidence in rows. `notes` are lines below the table."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str]


def as_document(report: Report) -> dict[str, Any]:
    """The JSON object of `--json`: verdict first, then every field. Numbers that do not exist are null. Fields are only added."""
    promise = {LosslessReport: "lossless", SpeedReport: "speed", WholeReport: "whole"}[type(report)]
    head = {"promise": promise, "proven": report.proven, "verdict": report.verdict}
    document: dict[str, Any] = _finite({**head, **asdict(report)})
    if isinstance(report, LosslessReport):
        for case, found in zip(report.cases, document["cases"], strict=True):
            found["proven"] = case.proven
    return document


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_table(report: Report) -> Table:
    """The evidence."""
    if isinstance(report, LosslessReport):
        return _lossless(report)
    if isinstance(report, SpeedReport):
        return _speed(report)
    return _whole(report)


def as_text(table: Table) -> str:
    """Aligned columns; numbers to the right; no line is cut."""
    grid = [table.columns, *table.rows]
    widths = [max(len(row[column]) for row in grid) for column in range(len(table.columns))]
    right = [_all_numbers(table.rows, column) for column in range(len(table.columns))]
    lines = []
    for row in grid:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join([*lines, *(f"  {note}" for note in table.notes)])


def _all_numbers(rows: Sequence[tuple[str, ...]], column: int) -> bool:
    return all(row[column][:1].isdigit() or row[column] == "-" for row in rows)


def _subject(report: Report) -> str:
    return f"{report.model} ({report.dtype}), drafter {report.drafter}"


# lossless


def _lossless(report: LosslessReport) -> Table:
    rows = [_case(case) for case in report.cases]
    rows += [(name, "not run", "-", "-", "-", "-", "time was over") for name in report.skipped]
    invariant = "yes" if report.row_invariant else "NO: output is lossless in distribution only"
    notes = [f"{_subject(report)}; row-invariant by the target's self-test: {invariant}"]
    notes += ["compared with: the same requests without drafting, one at a time, nothing cached"]
    notes += _found(report)
    columns = ("way of running", "verdict", "requests", "tokens", "drafted", "kept", "evidence")
    return Table(columns, rows, notes)


def _case(case: Case) -> tuple[str, ...]:
    verdict = "identical" if case.proven else "not exercised"
    if case.errors:
        verdict = f"{len(case.errors)} failed"
    if case.differences:
        verdict = f"{len(case.differences)} differ"
    return (
        case.name,
        verdict,
        str(case.requests),
        str(case.tokens),
        str(case.drafted_tokens),
        str(case.accepted_tokens),
        case.evidence,
    )


def _found(report: LosslessReport) -> list[str]:
    lines = []
    for case in report.cases:
        for one in case.differences:
            tie = "; a near tie" if one.near_tie else ""
            prompt = report.prompts[one.prompt - 1] if 0 < one.prompt <= len(report.prompts) else ""
            lines.append(
                f"{case.name}: prompt {one.prompt} {prompt[:40]!r}, {one.kind}, output {one.choice}: {one.detail}{tie}"
            )
        lines += [f"{case.name}: {error}" for error in case.errors]
    hidden = len(lines) - _DIFFERENCES_SHOWN
    return lines[:_DIFFERENCES_SHOWN] + ([f"... and {hidden} more (--json has all)"] if hidden > 0 else [])


# speed


def _speed(report: SpeedReport) -> Table:
    columns = (
        "batch",
        "verdict",
        "pairs",
        "ratio",
        "95% interval",
        "tok/s with",
        "without",
        "tau",
        "draft length",
    )
    notes = [
        f"{_subject(report)}, draft mode {report.draft_mode}; proven where the interval starts at {report.floor:.2f} or above",
        report.method,
    ]
    for row in report.rows:
        if row.draft_lengths:
            chosen = ", ".join(f"{k}: {count}" for k, count in enumerate(row.draft_lengths) if count)
            notes.append(f"batch {row.batch}: steps by draft length {chosen}")
        if row.ratios and row.coverage < 0.95:
            notes.append(
                f"batch {row.batch}: {len(row.ratios)} pairs are too few for 95%: the interval covers {100 * row.coverage:.0f}%"
            )
    return Table(columns, [_speed_row(row) for row in report.rows], notes)


def _speed_row(row: SpeedRow) -> tuple[str, ...]:
    if not row.ratios:
        return (str(row.batch), row.state, "0", "-", "-", "-", "-", "-", "-")
    return (
        str(row.batch),
        {"noisy": "too noisy"}.get(row.state, row.state),
        str(len(row.ratios)),
        f"{row.median:.3f}",
        f"{row.low:.3f} to {row.high:.3f}",
        f"{row.tokens_per_second:.1f}",
        f"{row.tokens_per_second_without:.1f}",
        f"{row.acceptance_length:.2f}",
        f"{row.mean_draft_length:.1f}",
    )


# whole


def _whole(report: WholeReport) -> Table:
    notes = [
        f"{_subject(report)}: {report.drafted_tokens} draft tokens verified, {report.accepted_tokens} kept",
        f"{len(report.prompts)} prompts, greedy and sampled, alone and all in one batch; compared with drafting off, alone",
    ]
    return Table(
        ("feature", "verdict", "runs", "tokens", "detail"), [_feature(row) for row in report.rows], notes
    )


def _feature(row: FeatureRow) -> tuple[str, ...]:
    return (row.name, row.state, str(row.requests), str(row.tokens), row.detail)
