"""How many threads a step of decoding or training runs on, where other programs want the cores too.

The threads of a pass wait for one another many times. When another program takes one of their cores, they wait for whole
slices of the system's time, and the pass takes several times as long as with one thread less: on two cores of which one is
taken, a small model decodes 2.3 times as fast with one thread as with two. Results are the same with any number.

Whether somebody else is there shows in how often the system takes a core away from this process. Whether fewer threads are
faster is then tried, and from time to time tried again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

LOOK = 0.1
"""Seconds between two looks at the counter of switches."""
CROWDED = 110.0
"""Cores taken away a second from which on there is somebody else. On a quiet virtual machine of two there are 30 to 40, and 90
in the first second; with one of them taken, 190 to 300."""
CALM_RATE = 40.0
"""The same with fewer threads, which are taken away less often: below it the others seem to have gone. On one of two cores there
are 4 when nobody else is there, and 55 to 120 when somebody is."""
SURE = 2
"""Looks in a row that have to say so."""
CALM = 50
"""Looks in a row that say nobody is there, after which what was found in trials counts no more."""
FIRST_REST, LONGEST_REST = 0.25, 4.0
"""Seconds until the other number of threads is tried: doubled with each trial that confirms the present one."""
TRIAL, TRIAL_STEPS = 0.02, 4
"""Seconds and steps of a trial, at least; it ends without a verdict after ten times as many seconds."""
BETTER = 0.95
"""The other number of threads is taken when it needs less than this share of the time."""
MEMORY = 0.2
"""Weight of a step in the time known of its like."""
MOST_KEYS = 256
"""Kinds of steps whose times are known at once."""


def switches() -> int | None:
    """How often the system has taken a core away from this process; None where that is not counted."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class Crew:
    """Chooses the number of threads step by step. Not thread-safe.

    Args:
        most: threads there are.
        clock: seconds.
        count: see `switches`.
    """

    def __init__(
        self,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        count: Callable[[], int | None] = switches,
    ) -> None:
        self.most, self.few = most, max(1, most - max(1, most // 4))
        self._clock, self._count = clock, count
        self._counted, self._looked = count(), clock()
        self._crowded = 0  # looks in a row that found somebody; negative: nobody
        self.threads = self._usual = most
        self._rest, self._since = FIRST_REST, self._looked
        self._known: dict[tuple[int, int, int], float] = {}
        self._spent = self._expected = 0.0
        self._steps = 0

    def done(self, rows: int, drafted: int, seconds: float) -> None:
        """A step of so many target rows and draft slots has run on `threads` threads.

        Args:
            rows, drafted: steps alike in both are compared.
            seconds: it took.
        """
        if self._counted is None or self.few == self.most:
            return
        now = self._clock()
        self._learn((self.threads, rows, drafted), seconds)
        if self.threads != self._usual:
            self._judge((self._usual, rows, drafted), seconds, now)
        elif now - self._looked >= LOOK:
            self._look(now)
            if self._crowded <= -CALM:
                self._rest = FIRST_REST
            if self._usual == self.few:
                rest = FIRST_REST if self._crowded <= -SURE else self._rest
            else:
                rest = self._rest if self._crowded >= SURE else math.inf
            if now - self._since >= rest:
                self._try(now)

    def _look(self, now: float) -> None:
        """Whether somebody else is on the machine."""
        before, then = self._counted, self._looked
        self._counted, self._looked = self._count(), now
        threshold = CROWDED if self._usual == self.most else CALM_RATE
        if (self._counted or 0) - (before or 0) >= threshold * (now - then):
            self._crowded = max(0, self._crowded) + 1
        else:
            self._crowded = min(0, self._crowded) - 1

    def _learn(self, key: tuple[int, int, int], seconds: float) -> None:
        if len(self._known) >= MOST_KEYS and key not in self._known:
            self._known.clear()
        before = self._known.get(key, seconds)
        self._known[key] = before + MEMORY * (seconds - before)

    def _try(self, now: float) -> None:
        """The other number of threads, for a few steps."""
        self.threads = self.few if self._usual == self.most else self.most
        self._since = now
        self._spent = self._expected = 0.0
        self._steps = 0

    def _judge(self, usual: tuple[int, int, int], seconds: float, now: float) -> None:
        """A step of a trial: compared with what its like takes otherwise."""
        if usual in self._known:
            self._spent += seconds
            self._expected += self._known[usual]
            self._steps += 1
        took = now - self._since
        if took < TRIAL or (self._steps < TRIAL_STEPS and took < 10 * TRIAL):
            return
        if self._steps and self._spent < BETTER * self._expected:
            self._usual, self._rest = self.threads, FIRST_REST
        else:
            self.threads, self._rest = self._usual, min(LONGEST_REST, 2.0 * self._rest)
        self._since = now

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Torch uses `threads` threads inside, and what it used before outside."""
        before = torch.get_num_threads()
        if before <= self.threads:
            yield
            return
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
