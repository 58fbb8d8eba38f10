"""Several threads, one engine: whoever waits for an event steps it, and what a step brings to others is waiting for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from draftproof.engine.core import EngineCore
from draftproof.engine.metrics import Metrics
from draftproof.engine.request import Request
from draftproof.engine.results import StreamEvent


class SharedLoop:
    """An engine that any number of threads may use at once; their requests run in one batch.

    Args:
        core: the engine; from here on nobody else touches it.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._lock = threading.Lock()

    @property
    def metrics(self) -> Metrics:
        """See `EngineCore.metrics`."""
        with self._lock:
            return self._core.metrics

    def add(self, request: Request) -> None:
        """Take a request in. Raises what `EngineCore.add` raises."""
        with self._lock:
            self._core.add(request)

    def abort(self, request_id: str) -> None:
        """End a request, if it still runs."""
        with self._lock:
            self._core.abort(request_id)

    def events(self, inbox: deque[StreamEvent]) -> Iterator[StreamEvent]:
        """Events from an inbox that a request delivers to, up to the last one; steps the engine while it is empty."""
        while True:
            while not inbox:
                with self._lock:
                    if not inbox:  # another thread may have brought it while this one waited
                        self._core.step()
            event = inbox.popleft()
            yield event
            if event.finished:
                return
