"""The results file: one JSON object, written in one piece, from which a broken-off benchmark goes on."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from draftproof.bench.figures import Cell, ModeFigures, PhaseShares
from draftproof.bench.spread import Percentiles, Spread
from draftproof.errors import RequestError

SCHEMA = 1
"""Raised when a field changes its meaning or goes; not when one is added."""


@dataclass(frozen=True)
class Setup:
    """What makes two results comparable: cells go into one file only if all of this is the same.

    Attributes:
        version: of this package.
        model, drafter: by name; drafter ``"none"`` without one.
        dtype: as asked for.
        computed_in: the torch dtype it came to.
        modes, max_tokens, rounds, seed, top_p, ignore_eos: see `BenchOptions`.
        prompts: a digest of all prompts.
        max_draft_tokens: most draft tokens a step.
        processor: the machine's, by name.
        threads: of torch.
        torch: its version.
    """

    version: str
    model: str
    drafter: str
    dtype: str
    computed_in: str
    modes: list[str]
    max_tokens: int
    rounds: int
    seed: int
    top_p: float
    ignore_eos: bool
    prompts: str
    max_draft_tokens: int
    processor: str
    threads: int
    torch: str


@dataclass(frozen=True)
class Results:
    """All that was measured.

    Attributes:
        setup: how.
        resident_before_mib: memory of the process before the models were loaded, libraries imported; None if not known.
        resident_loaded_mib: after loading.
        cells: in the order they were measured.
    """

    setup: Setup
    resident_before_mib: float | None
    resident_loaded_mib: float | None
    cells: list[Cell]


def write_results(path: Path, results: Results) -> None:
    """Write the file, or leave the old one as it is.

    Raises:
        RequestError: DP476, it cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, **asdict(results)}, indent=1, allow_nan=False) + "\n"
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise RequestError("DP476", f"cannot write {path}: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_results(path: Path) -> Results:
    """The results in a file.

    Raises:
        RequestError: DP476, it cannot be read or is not such a file.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schema = document["schema"]
        if schema != SCHEMA:
            raise RequestError("DP476", f"{path}: expected schema {SCHEMA}, got {schema!r}")
        return Results(
            setup=Setup(**_known(Setup, document["setup"])),
            resident_before_mib=document["resident_before_mib"],
            resident_loaded_mib=document["resident_loaded_mib"],
            cells=[_cell(cell) for cell in document["cells"]],
        )
    except OSError as error:
        raise RequestError("DP476", f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError("DP476", f"{path} is no results file of draftproof bench") from error


def check_same_setup(path: Path, there: Setup, here: Setup) -> None:
    """Raises `RequestError` DP474 when the results in a file were measured otherwise."""
    for field in fields(Setup):
        old, new = getattr(there, field.name), getattr(here, field.name)
        if old != new:
            raise RequestError(
                "DP474", f"{path} holds results of another setup: {field.name} is {old!r} there, {new!r} here"
            )


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Without fields that a later version may have added."""
    return {field.name: values[field.name] for field in fields(kind)}


def _cell(values: Mapping[str, Any]) -> Cell:
    return Cell(**{**_known(Cell, values), "modes": [_mode(mode) for mode in values["modes"]]})


_PARTS: dict[str, type] = {
    "tokens_per_second": Spread,
    "speed_over_off": Spread,
    "prompt_tokens_per_second": Spread,
    "first_token_ms": Percentiles,
    "inter_token_ms": Percentiles,
    "per_token_ms": Percentiles,
    "shares": PhaseShares,
}


def _mode(values: Mapping[str, Any]) -> ModeFigures:
    known = _known(ModeFigures, values)
    for name, kind in _PARTS.items():
        if known[name] is not None:
            known[name] = kind(**_known(kind, known[name]))
    return ModeFigures(**known)
