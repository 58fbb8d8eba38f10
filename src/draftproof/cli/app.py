"""The commands, put together. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, TextIO

import typer

from draftproof import __version__
from draftproof.cli.bench import bench
from draftproof.cli.chat import chat
from draftproof.cli.doctor import doctor
from draftproof.cli.explain import explain
from draftproof.cli.export import export
from draftproof.cli.generate import generate
from draftproof.cli.models import models
from draftproof.cli.prove import prove
from draftproof.cli.serve import serve
from draftproof.cli.train import train
from draftproof.errors import DraftproofWarning

app = typer.Typer(
    name="draftproof",
    help="Lossless speculative decoding with block-diffusion (DFLASH) drafters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(generate)
app.command()(chat)
app.command()(serve)
app.command()(bench)
app.command()(models)
app.command()(train)
app.command()(export)
app.command()(doctor)
app.command()(explain)
app.add_typer(prove)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draftproof {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Lossless speculative decoding with block-diffusion (DFLASH) drafters."""


def run() -> None:
    """Run the command line of this process and exit."""
    warnings.showwarning = _show_warning
    try:
        app()
    except KeyboardInterrupt:  # Before or after a command; inside one, `exits` has it.
        sys.exit(130)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are for the user, in one line; those of other packages are for their developers."""
    if issubclass(category, DraftproofWarning):
        print(f"warning: {message}", file=sys.stderr)
