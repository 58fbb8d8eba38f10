"""The command line. Thin: it reads options, calls the engine, and prints."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `draftproof` command."""
    from draftproof.cli.app import run

    run()
