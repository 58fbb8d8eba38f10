"""Several threads, one engine: whoever waits for an event steps it, and what a step brings to others is waiting for them.

A step holds the engine for tens of milliseconds and the next one begins at once, so nobody should have to wait for a gap to get a
word in: requests and aborts are left at the door, and whoever holds the engine takes them in before and after its step.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from draftproof.engine.core import EngineCore
from draftproof.engine.metrics import Metrics
from draftproof.engine.request import Request
from draftproof.engine.results import StreamEvent
from draftproof.errors import RequestError

COUNT_EVERY = 0.02
"""Seconds between two copies of the counters for those who ask while a step is under way: a copy at each of the steps of a
small model would cost one percent of them."""


class SharedLoop:
    """An engine that any number of threads may use at once; their requests run in one batch.

    Args:
        core: the engine; from here on nobody else touches it.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._holding = threading.Lock()  # who steps
        self._door: deque[Callable[[], object]] = deque()
        self._gate = (
            threading.RLock()
        )  # the ids in use; garbage collection may close a stream while it is held
        self._ids: set[str] = set()
        self._metrics, self._counted = core.metrics, time.perf_counter()

    @property
    def metrics(self) -> Metrics:
        """The counters as of now, or, while a step is under way, as of a moment ago; see `EngineCore.metrics`."""
        self._sweep()
        if self._holding.acquire(blocking=False):
            try:
                self._metrics, self._counted = self._core.metrics, time.perf_counter()
            finally:
                self._holding.release()
        return self._metrics

    @property
    def unfinished(self) -> int:
        """Requests that have yet to give their last event."""
        return len(self._ids)

    def check_size(self, request: Request) -> None:
        """Whether the engine can ever run it. Raises `RequestError` DP443."""
        self._core.check_size(request)

    def add(self, request: Request) -> None:
        """Take a request in. Never waits for a step.

        Raises:
            RequestError: DP442, its id is in use; DP443, more choices than the engine runs at once.
        """
        self.check_size(request)
        with self._gate:
            if request.request_id in self._ids:
                raise RequestError(
                    "DP442", f"request_id {request.request_id!r} is in use by a running request"
                )
            self._ids.add(request.request_id)
        request.deliver = self._releasing(request.request_id, request.deliver)
        self._door.append(lambda: self._core.add(request))
        self._sweep()

    def _releasing(
        self, request_id: str, deliver: Callable[[StreamEvent], None]
    ) -> Callable[[StreamEvent], None]:
        """`deliver`, giving the id free with the last event."""

        def release_and_deliver(event: StreamEvent) -> None:
            if event.finished:
                with self._gate:
                    self._ids.discard(request_id)
            deliver(event)

        return release_and_deliver

    def abort(self, request_id: str) -> None:
        """End a request, if it still runs. Never waits for a step: one that is under way ends first."""
        if request_id in self._ids:
            self._door.append(lambda: self._core.abort(request_id))
            self._sweep()

    def abort_all(self) -> None:
        """End everything that runs."""
        with self._gate:
            ids = list(self._ids)
        for request_id in ids:
            self.abort(request_id)

    def events(self, inbox: deque[StreamEvent]) -> Iterator[StreamEvent]:
        """Events from an inbox that a request delivers to, up to the last one; steps the engine while it is empty."""
        while True:
            while not inbox:
                self.step(unless=inbox)
            event = inbox.popleft()
            yield event
            if event.finished:
                return

    def step(self, unless: deque[StreamEvent] | None = None) -> bool:
        """One step of the engine, after whoever is at it now; whether anything is left to do.

        Args:
            unless: an inbox; when another thread's step has filled it in the meantime, there is no need for one more.
        """
        with self._holding:
            self._take_in()
            if not unless and self._core.unfinished:
                self._core.step()
                self._take_in()
            now = time.perf_counter()
            if now - self._counted > COUNT_EVERY or not self._core.unfinished:
                self._metrics, self._counted = self._core.metrics, now
            left = self._core.unfinished > 0
        self._sweep()
        return left or bool(self._door)

    def _sweep(self) -> None:
        """Take in what lies at the door, unless somebody holds the engine, who will do it."""
        while self._door and self._holding.acquire(blocking=False):
            try:
                self._take_in()
                self._metrics, self._counted = self._core.metrics, time.perf_counter()
            finally:
                self._holding.release()

    def _take_in(self) -> None:
        while self._door:
            self._door.popleft()()
