"""Who is let in: a bounded queue, so many requests a key, and nobody once the server is about to end.

Refusals come at once: a client that knows can wait or go elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from draftproof.errors import ServerError

LONGEST_WAIT = 60
"""Seconds that `Retry-After` says at most."""
DRAINING_WAIT = 5
"""Seconds after which another instance has probably taken over."""
NEWEST = 0.1
"""Weight of the newest request in the mean duration."""


class OverloadedError(ServerError):
    """Not now. `retry_after`: seconds after which a new try makes sense."""

    def __init__(self, code: str, message: str, retry_after: int) -> None:
        super().__init__(code, message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[OverloadedError], tuple[str, str, int]]:  # type: ignore[override]
        return type(self), (self.code, self.message, self.retry_after)


class Admission:
    """Counts the requests inside. For one event loop.

    Args:
        places: outputs that the engine decodes at once.
        max_queue: requests beyond those that may wait.
        max_concurrent_per_key: requests of one key at once; None: any number.
        waiting: outputs that the engine keeps waiting, as of its last step.
        healthy: whether the engine works.

    Attributes:
        draining: nothing new is let in.
        inside: requests let in and not yet out.
    """

    def __init__(
        self,
        places: int,
        max_queue: int,
        max_concurrent_per_key: int | None = None,
        waiting: Callable[[], int] = lambda: 0,
        healthy: Callable[[], bool] = lambda: True,
    ) -> None:
        self._places, self._max_queue, self._most_each = places, max_queue, max_concurrent_per_key
        self._waiting, self._healthy = waiting, healthy
        self._by_key: Counter[str] = Counter()
        self._mean_s = 1.0
        self._empty = asyncio.Event()
        self._empty.set()
        self.inside = 0
        self.draining = False

    @asynccontextmanager
    async def enter(self, key: str) -> AsyncIterator[None]:
        """Hold a place for one HTTP request.

        Raises:
            OverloadedError: at once: DP604, too many wait; DP605, too many of this key's; DP606, the server is ending; DP609, the
                engine does not work.
        """
        self._check(key)
        self.inside += 1
        self._by_key[key] += 1
        self._empty.clear()
        began = time.monotonic()
        try:
            yield
        finally:
            self._mean_s += NEWEST * (time.monotonic() - began - self._mean_s)
            self._leave(key)

    async def until_empty(self, timeout: float) -> bool:
        """Wait until nothing is inside, `timeout` seconds at most; whether that came about."""
        try:
            await asyncio.wait_for(self._empty.wait(), timeout)
        except asyncio.TimeoutError:
            return not self.inside
        return True

    def _check(self, key: str) -> None:
        if self.draining:
            raise OverloadedError(
                "DP606", "the server is shutting down and takes no new requests", DRAINING_WAIT
            )
        if not self._healthy():
            raise OverloadedError("DP609", "the engine does not work at the moment", LONGEST_WAIT)
        if self._most_each is not None and self._by_key[key] >= self._most_each:
            raise OverloadedError(
                "DP605",
                f"this key has {self._most_each} requests under way, the most it may have: wait for one",
                self._advice(1),
            )
        # Requests with many outputs, or memory that is short, make a queue in the engine that their number does not show.
        crowded = self._waiting() > max(self._max_queue, self._places)
        if self.inside >= self._places + self._max_queue or crowded:
            waiting = max(self.inside - self._places, self._waiting() if crowded else 0)
            raise OverloadedError("DP604", f"the queue is full ({waiting} waiting)", self._advice(waiting))

    def _advice(self, waiting: int) -> int:
        """Seconds until `waiting` requests will have gone in, by the mean duration so far."""
        return max(1, min(LONGEST_WAIT, math.ceil(self._mean_s * max(waiting, 1) / self._places)))

    def _leave(self, key: str) -> None:
        self.inside -= 1
        self._by_key[key] -= 1
        if not self._by_key[key]:
            del self._by_key[key]
        if not self.inside:
            self._empty.set()
