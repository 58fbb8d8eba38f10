"""Streamed text on standard output: coloured on a terminal, plain elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from draftproof.engine import RequestResult, StreamEvent, TextPiece

_CONTROLS = [code for code in range(32) if chr(code) not in "\n\t"]
_VISIBLE = {
    **{code: 0x2400 + code for code in _CONTROLS},
    **dict.fromkeys(range(127, 160), 65533),
}
"""Control characters -> signs that show them: a model must not be able to steer the terminal."""


class Screen:
    """Shows one run.

    Args:
        silent: show nothing, only run.
        at_the_end: hold the text back until it is complete.
    """

    def __init__(self, *, silent: bool = False, at_the_end: bool = False) -> None:
        self._silent = silent
        self._at_the_end = at_the_end
        # soft_wrap: the terminal breaks lines; we print fragments and do not know the column.
        self._console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
        # With NO_COLOR set a colour would be dropped, an underline is not.
        self._draft_style = "underline" if self._console.no_color else "green"

    def show(self, events: Iterator[StreamEvent]) -> RequestResult:
        """Show the events as they come, and return the result that the last one carries."""
        if self._coloured:
            self._legend()
        result, held = None, []
        for event in events:
            result = event.result
            if self._at_the_end:
                held.extend(event.pieces)
            else:
                self._print(event.pieces)
        assert result is not None
        self._print(held)
        if not self._silent:
            sys.stdout.write("\n")
            sys.stdout.flush()
        return result

    @property
    def _coloured(self) -> bool:
        return self._console.is_terminal and not self._silent

    def _legend(self) -> None:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        line = Text.assemble(
            ("accepted draft tokens", self._draft_style), ", the target's own tokens", style="dim"
        )
        console.print(line)

    def _print(self, pieces: list[TextPiece]) -> None:
        if self._silent or not pieces:
            return
        if self._coloured:
            text = Text()
            for piece in pieces:
                text.append(piece.text.translate(_VISIBLE), self._draft_style if piece.drafted else "")
            self._console.print(text, end="")
        else:
            sys.stdout.write("".join(piece.text for piece in pieces))
        sys.stdout.flush()
