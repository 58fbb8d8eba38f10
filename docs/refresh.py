"""Bring the generated parts of the docs up to date: the map of the files and the table of the errors.

Run as `python docs/refresh.py`; with `--check` it changes nothing and fails when something is out of date.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from draftproof.errors import ALL

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "draftproof"
ROOMS = (
    "errors",
    "verify",
    "sampling",
    "models",
    "cache",
    "engine",
    "audit",
    "bench",
    "train",
    "export",
    "cli",
)


def first_line(file: Path) -> str:
    """What a file says of itself: the first line of its docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def file_map() -> str:
    """One table a room, one line a file."""
    parts = []
    for room in ROOMS:
        files = sorted((SOURCE / room).rglob("*.py"))
        if not files:
            continue
        own = SOURCE / room / "__init__.py"
        rows = [
            f"| `{file.relative_to(SOURCE / room)}` | {first_line(file)} |" for file in files if file != own
        ]
        head = f"### `{room}`\n\n{first_line(own)}\n" if own.exists() else f"### `{room}`\n"
        parts.append("\n".join([head, "| file | |", "| --- | --- |", *rows]))
    return "\n\n".join(parts)


def error_table() -> str:
    """Every code, name and title."""
    rows = [f"| {e.code} | `{e.name}` | {e.title.rstrip('.')} |" for e in sorted(ALL, key=lambda e: e.code)]
    return "\n".join(["| code | name | what went wrong |", "| --- | --- | --- |", *rows])


def refreshed(text: str, name: str, body: str) -> str:
    """`text` with what stands between the two marks called `name` replaced by `body`."""
    begin, end = f"<!-- {name}: made by docs/refresh.py -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"no marks for {name}")
    return f"{before}{begin}\n\n{body}\n\n{end}{after}"


def main() -> None:
    """Refresh both pages, or check them."""
    stale = []
    for page, name, body in (
        ("code-map.md", "files", file_map()),
        ("errors.md", "errors", error_table()),
    ):
        path = ROOT / "docs" / page
        old = path.read_text(encoding="utf-8")
        new = refreshed(old, name, body)
        if new == old:
            continue
        stale.append(page)
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv:
        raise SystemExit(f"out of date: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()
