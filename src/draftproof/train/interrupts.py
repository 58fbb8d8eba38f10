"""Ctrl-C and SIGTERM during a run: an optimizer step is finished and saved, everything else stops where it is.

A signal that comes while compiled code calls back into Python raises an exception that nobody sees. So it is noted as well, and
whoever works in pieces calls `check` after each.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Whether somebody asked the run to stop.

    Attributes:
        asked: set by a signal; the training loop looks at it after every step.
        soft: whether a signal only sets `asked`. Otherwise, and the second time, it raises `KeyboardInterrupt` too.
    """

    def __init__(self) -> None:
        self.asked = False
        self.soft = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        again, self.asked = self.asked, True
        if again or not self.soft:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Stop here if somebody asked for it.

        Raises:
            KeyboardInterrupt: somebody did.
        """
        if self.asked and not self.soft:
            raise KeyboardInterrupt

    @contextmanager
    def softened(self) -> Iterator[None]:
        """While this lasts a signal is a wish, not an exception."""
        self.soft = True
        try:
            yield
        finally:
            self.soft = False


@contextmanager
def watching_signals() -> Iterator[Interrupts]:
    """An `Interrupts` that gets this process's signals; in another thread than the main one it never hears of any."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.signal(number, interrupts.handle) for number in SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
