"""What the tests of the command pass around."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """What a finished command left."""

    status: int
    out: str
    err: str


Run = Callable[..., Done]
