"""`draftproof models`: the known names and their copies in the cache."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from draftproof.cli.exits import Debug, coded
from draftproof.errors import ModelError
from draftproof.models.registry import (
    CachedModel,
    ConsoleProgress,
    KnownModel,
    find_known,
    list_cached,
    remove_cached,
    resolve_model,
    verify_cached,
)

Name = str | None


@coded
def models(
    fetch: Annotated[Name, typer.Option(help="Download and convert this model now.", metavar="NAME")] = None,
    remove: Annotated[Name, typer.Option(help="Remove this model's copy.", metavar="NAME")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the checksums of all copies.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """List the models known by name; fetch, check or remove their copies.

    A folder or a hub id (owner/name) may be given wherever a model is asked for, without being listed here.
    """
    progress = ConsoleProgress()
    if remove is not None:
        freed = remove_cached(_known(remove), progress)
        typer.echo(f"removed {remove}, {_megabytes(freed)} freed", err=True)
    if fetch is not None:
        resolve_model(_known(fetch).name, progress=progress)
    listed = list_cached()
    if verify:
        for model in listed:
            if model.cached:
                verify_cached(model.entry, progress)
    if as_json:
        typer.echo(json.dumps([_as_dict(model, verify) for model in listed], indent=2))
        return
    for model in listed:
        _print(model, verify)


def _known(name: str) -> KnownModel:
    entry = find_known(name)
    if entry is None:
        names = ", ".join(model.entry.name for model in list_cached())
        raise ModelError("DP200", f"unknown model {name!r}: only known names are kept here: {names}")
    return entry


def _as_dict(model: CachedModel, verified: bool) -> dict[str, str | int | bool]:
    return {
        "name": model.entry.name,
        "title": model.entry.title,
        "licence": model.entry.licence,
        "download_bytes": model.entry.source.size,
        "cached": model.cached,
        "verified": model.cached and verified,
        "bytes": model.bytes,
        "path": str(model.path),
    }


def _print(model: CachedModel, verified: bool) -> None:
    if model.cached:
        state = (
            f"in the cache, {_megabytes(model.bytes)}{', checksums right' if verified else ''}: {model.path}"
        )
    else:
        state = f"not fetched yet, a download of {_megabytes(model.entry.source.size)}"
    typer.echo(f"{model.entry.name}\n  {model.entry.title}\n  licence {model.entry.licence}\n  {state}")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
