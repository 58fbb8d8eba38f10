"""How long an audit may take, and who is told how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]
"""Seconds from some fixed moment on."""

Watcher = Callable[[str, int, int], None]
"""Told what is running, how many parts are done, and how many there are."""


def nobody(label: str, done: int, total: int) -> None:
    """A `Watcher` that looks away."""


@dataclass
class Budget:
    """Seconds an audit may take. Nothing is cut short; nothing new is begun once they are over.

    Attributes:
        seconds: None for as long as it takes.
        clock: what is looked at.
    """

    seconds: float | None = None
    clock: Clock = time.perf_counter
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.clock()

    @property
    def over(self) -> bool:
        return self.seconds is not None and self.clock() - self._started >= self.seconds
