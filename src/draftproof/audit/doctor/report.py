"""What doctor says, as a table for people and as one JSON object; both say the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from draftproof.audit.doctor.findings import DoctorReport, Trial
from draftproof.audit.doctor.scoring import Score
from draftproof.audit.doctor.slots import rates
from draftproof.audit.report import Table

_COLUMNS = ("correction", "tokens a step", "gain", "99% interval", "verdict")
_MASKS_SHOWN = 3
_AS_GOOD_SHOWN = 3


def as_table(report: DoctorReport) -> Table:
    """The pair as it stands, then every correction, round by round; below it what to do."""
    rows = [_as_is(report), *_rows(report)]
    notes = [
        f"{report.model} ({report.precision}), drafter {report.drafter}: {report.prompts} prompts ({report.style}), "
        f"{report.tokens} tokens of the target's greedy answers",
        f"the n-gram drafter, which knows the text alone, has {report.yardstick:.2f} tokens a step there",
        *_slots(report),
    ]
    for number, finding in enumerate(report.findings, 1):
        notes.append(f"{number}. {finding.cause}: {finding.remedy}")
        if finding.as_good:
            more = len(finding.as_good) - _AS_GOOD_SHOWN
            listed = ", ".join(finding.as_good[:_AS_GOOD_SHOWN]) + (f" and {more} more" if more > 0 else "")
            notes.append(f"   as good: {listed}; take the one it was trained with")
    return Table(_COLUMNS, rows, notes)


def as_document(report: DoctorReport) -> dict[str, Any]:
    """The JSON object of ``--json``: verdict first, then every field. Fields are only ever added."""
    head = {"healthy": report.healthy, "verdict": report.verdict, "low": report.low}
    document = {**head, **asdict(report), "as_is": _score(report.as_is), "settled": _score(report.settled)}
    document["trials"] = [{**asdict(trial), "score": _score(trial.score)} for trial in report.trials]
    return document


def _score(score: Score | None) -> dict[str, Any] | None:
    if score is None:
        return None
    return {
        "acceptance_length": score.acceptance_length,
        "tokens": list(score.tokens),
        "steps": list(score.steps),
        "slot_rates": rates(score),
    }


def _as_is(report: DoctorReport) -> tuple[str, ...]:
    if report.as_is is None:
        return ("as it stands", "-", "-", "-", report.refusal.partition(" ")[0])
    return ("as it stands", f"{report.as_is.acceptance_length:.2f}", "", "", "")


def _rows(report: DoctorReport) -> Iterator[tuple[str, ...]]:
    """A row a trial; of mask tokens, of which there may be dozens, those that do best, and the rest in one row."""
    for _, group in groupby(report.trials, key=lambda trial: (trial.round, trial.kind)):
        trials = list(group)
        if trials[0].kind != "mask":
            yield from (_row(trial, report) for trial in trials)
            continue
        trials.sort(key=lambda trial: -trial.ratio)
        yield from (_row(trial, report) for trial in trials[:_MASKS_SHOWN])
        rest = [trial for trial in trials[_MASKS_SHOWN:] if trial.score is not None]
        if rest:
            yield _together(rest)


def _together(trials: Sequence[Trial]) -> tuple[str, ...]:
    lengths = [trial.score.acceptance_length for trial in trials if trial.score is not None]
    low, high = f"{min(lengths):.2f}", f"{max(lengths):.2f}"
    better = sum(trial.verdict == "clearly better" for trial in trials)
    name = f"{_depth(trials[0])}{len(trials)} other mask tokens"
    return (
        name,
        low if low == high else f"{low} to {high}",
        "",
        "",
        f"{better} clearly better" if better else "none is better",
    )


def _depth(trial: Trial) -> str:
    """One sign for every round before: what was found there stays in place."""
    return "+ " * (trial.round - 1)


def _row(trial: Trial, report: DoctorReport) -> tuple[str, ...]:
    name = f"{_depth(trial)}{trial.name}"
    if trial.score is None:
        return (name, "-", "-", "-", f"refused: {trial.refusal.partition(' ')[0]}")
    adopted = trial.verdict != "refused" and any(one.name == trial.name for one in report.findings)
    return (
        name,
        f"{trial.score.acceptance_length:.2f}",
        f"{100 * (trial.ratio - 1):+.0f}%",
        f"{100 * (trial.low - 1):+.0f}% to {100 * (trial.high - 1):+.0f}%",
        f"{trial.verdict}{' <' if adopted else ''}",
    )


def _slots(report: DoctorReport) -> list[str]:
    """Agreement by slot, where it is known."""
    if report.as_is is None:
        return [f"as it stands: {report.refusal}"]
    shown = [
        "-" if rate is None else f"{100 * rate:.0f}% of {reached}"
        for rate, reached in zip(rates(report.as_is), report.as_is.reached, strict=True)
    ]
    return [f"as it stands, slots 1, 2, ... agree where those before did: {', '.join(shown)}"]
