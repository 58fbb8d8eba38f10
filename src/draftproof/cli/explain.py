"""`draftproof explain`: the long form of every error."""

from __future__ import annotations

import difflib
import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.exits import coded
from draftproof.errors import ALL, Explanation, explanation

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PYTHON_MARKS = ("import ", "from ", "LLM(", "llm.", "= ", "def ", "(\n")
"""What tells a Python example from one for the shell, when highlighting."""


@coded
def explain(
    code: Annotated[
        str | None, typer.Argument(help="A code (DP105) or a name; all are listed without.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what an error means, what triggers it, how to fix it, and how to prevent it."""
    if code is None:
        _list_all(as_json)
        return
    entry = _find(code)
    if as_json:
        typer.echo(json.dumps(asdict(entry), indent=2, ensure_ascii=False))
    else:
        _render(entry)


def _find(code: str) -> Explanation:
    wanted = code.strip().strip("[]").removeprefix("error[")
    try:
        return explanation(f"DP{wanted}" if wanted.isdigit() else wanted)
    except KeyError:
        raise typer.BadParameter(f"no error has the code or name {code!r}.{_near_misses(wanted)}") from None


def _near_misses(wanted: str) -> str:
    names = {entry.name: entry for entry in ALL}
    close = [names[name] for name in difflib.get_close_matches(wanted.lower(), names, n=3)]
    if wanted.upper().startswith("DP"):
        close = _near_codes(wanted.upper())
    if not close:
        return " `draftproof explain` lists all."
    return f" Did you mean {' or '.join(f'{entry.code} ({entry.name})' for entry in close)}?"


def _near_codes(wanted: str) -> list[Explanation]:
    """Up to three codes that share the longest beginning with `wanted`, the family's digit at least."""
    for length in range(len(wanted), 2, -1):
        found = [entry for entry in ALL if entry.code.startswith(wanted[:length])]
        if found:
            return found[:3]
    return []


def _list_all(as_json: bool) -> None:
    entries = sorted(ALL, key=lambda entry: entry.code)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2, ensure_ascii=False))
        return
    from rich.text import Text

    console = _console()
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        title = entry.title.rstrip(".")
        console.print(Text.assemble((entry.code, "bold"), f"  {entry.name:<{width}}  {title}"))


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def _render(entry: Explanation) -> None:
    from rich.text import Text

    console = _console()
    width = min(console.width, 100)

    def section(heading: str, *paragraphs: str) -> None:
        console.print()
        console.print(Text(heading, style="bold"))
        for paragraph in paragraphs:
            hang = "    " if paragraph.startswith("- ") else "  "
            console.print(Text(textwrap.fill(paragraph, width, initial_indent="  ", subsequent_indent=hang)))

    heading = f"  {entry.title.rstrip('.')}  "
    console.print(Text.assemble((entry.code, "bold red"), heading, (f"({entry.name})", "dim")))
    section("What it means", entry.meaning)
    section("What triggers it", *(f"- {trigger}" for trigger in entry.triggers))
    section("How to fix it", entry.fix)
    section("Before")
    console.print(_example(entry.before, console))
    section("After")
    console.print(_example(entry.after, console))
    section("How to prevent it", entry.prevention)


def _example(code: str, console: Console) -> RenderableType:
    from rich.syntax import Syntax
    from rich.text import Text

    indented = textwrap.indent(code, "  ")
    if not console.is_terminal:
        return Text(indented)
    language = "python" if any(mark in code for mark in _PYTHON_MARKS) else "bash"
    return Syntax(indented, language, theme="ansi_dark", background_color="default", word_wrap=True)
