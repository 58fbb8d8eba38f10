"""`draftproof export`: a trained drafter in another engine's format."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.exits import Debug, coded

if TYPE_CHECKING:
    from draftproof.export import ExportSummary


@coded
def export(
    drafter: Annotated[
        str, typer.Argument(help="default, folder or hub id of a DFlash checkpoint in the published layout.")
    ],
    to: Annotated[
        str, typer.Option(help="speculators (a folder, for vLLM) or gguf (a file, for llama.cpp).")
    ],
    out: Annotated[Path, typer.Option(help="Folder or file to write.")],
    target: Annotated[
        str | None,
        typer.Option(
            help="The target: known name, folder, hub id or GGUF file. Needed for gguf, checked against for both."
        ),
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="What a speculators export names as its target, if not --target.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Of a GGUF file's matrices: auto, f32, f16, bf16 or q8_0.")
    ] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is at --out.")] = False,
    debug: Debug = False,
) -> None:
    """Write a drafter in the format of another engine. What that format cannot hold is refused, never left out."""
    from draftproof.export import ExportOptions, export_drafter

    options = ExportOptions(target=target, verifier=verifier, dtype=dtype, overwrite=overwrite)
    summary = export_drafter(drafter, to, out, options)
    for line in _told(summary, target):
        typer.echo(line)


def _told(summary: ExportSummary, target: str | None) -> list[str]:
    """What was written, and how it is used."""
    taps, written = _numbers(summary.taps), _numbers(summary.written_taps)
    lines = [
        f"{summary.path}: {summary.format}, {summary.dtype}, {summary.size / 1e6:.1f} MB",
        f"taps {taps} are {written} there: the state entering a layer, not the one after it",
        f"use: {_vllm(summary) if summary.format == 'speculators' else _llama_cpp(summary, target)}",
    ]
    return lines


def _numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(str(number) for number in numbers)


def _vllm(summary: ExportSummary) -> str:
    method = {
        "method": "dflash",
        "model": str(summary.path),
        "num_speculative_tokens": summary.draft_tokens,
    }
    model = "TARGET" if summary.verifier is None else shlex.quote(summary.verifier)
    return f"vllm serve {model} --speculative-config {shlex.quote(json.dumps(method))}"


def _llama_cpp(summary: ExportSummary, target: str | None) -> str:
    model = shlex.quote(target) if target is not None and target.lower().endswith(".gguf") else "TARGET.gguf"
    return (
        f"llama-server -m {model} -md {shlex.quote(str(summary.path))} "
        f"--spec-type draft-dflash --spec-draft-n-max {summary.draft_tokens}"
    )
