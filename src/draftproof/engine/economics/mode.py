"""How drafting is asked for: `auto`, `fixed=N`, `off`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from draftproof.errors import RequestError

_FIXED = re.compile(r"fixed=(\d{1,6})")


@dataclass(frozen=True)
class DraftMode:
    """The way draft lengths are chosen.

    Attributes:
        kind: ``"auto"``: by measured costs and acceptance; ``"fixed"``: always `length`; ``"off"``: never draft.
        length: draft tokens a step in mode ``"fixed"`` (clipped later to what the drafter can); else 0.
    """

    kind: Literal["auto", "fixed", "off"] = "auto"
    length: int = 0

    @staticmethod
    def parse(value: str | DraftMode) -> DraftMode:
        """``"auto"``, ``"off"`` or ``"fixed=N"``; upper case and outer blanks do not matter.

        Raises:
            RequestError: DP440, for anything else.
        """
        if isinstance(value, DraftMode):
            return value
        text = value.strip().lower() if isinstance(value, str) else ""
        if text == "auto":
            return DraftMode("auto")
        if text == "off":
            return DraftMode("off")
        fixed = _FIXED.fullmatch(text)
        if fixed is None:
            raise RequestError(
                "DP440",
                f'draft_mode must be "auto", "off" or "fixed=N" with N a whole number from 0, got {value!r}',
            )
        return DraftMode("fixed", int(fixed[1]))

    def __str__(self) -> str:
        return f"fixed={self.length}" if self.kind == "fixed" else self.kind
