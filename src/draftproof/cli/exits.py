"""How a command ends: exit status 2 and one coded line for an error, 130 for Ctrl-C, no traceback."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer

from draftproof.errors import DraftproofError

P = ParamSpec("P")

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def coded(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command so that its errors end it as described above."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except DraftproofError as error:
            if kwargs.get("debug") or os.environ.get("DRAFTPROOF_DEBUG") == "1":
                raise
            _print_error(error)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # Whoever read our output has stopped. Python would complain once more when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None

    return wrapped


def _print_error(error: DraftproofError) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble((f"error[{error.code}]", "bold red"), f" {error.message}"))
    console.print(Text.assemble("hint: ", (f"draftproof explain {error.code}", "bold")))
