"""One HTTP request's way through the engine: let in, run, watched, and ended with whatever ends it.

Here and nowhere else: admission, the time limit, and the client that goes away.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from starlette.requests import Request

from draftproof.engine import RequestResult, RequestStream, StreamEvent
from draftproof.errors import DraftproofError, RequestError, ServerError
from draftproof.sampling import SamplingParams
from draftproof.server.metrics import RequestTimer
from draftproof.server.protocol.faults import renamed
from draftproof.server.protocol.gone import ClientGoneError
from draftproof.server.state import ServerState
from draftproof.server.tracing import Trace

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One prompt and what to make of it.

    Attributes:
        prompt_token_ids: the prompt.
        params: sampling; `n` outputs each.
        priority: smaller goes first.
    """

    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0


class Generation:
    """The engine's work for one HTTP request. Use as ``async with``; leaving ends what still runs.

    Args:
        server: the engine and everything around it.
        request: watched for the client's going; its body has been read.
        key: for admission.
        route: for the metrics.
        fields: names of the body's fields, and `names`: the engine's names to the client's; for the engine's refusals.

    Raises:
        ServerError: on entering: the server takes nothing at the moment.
    """

    def __init__(
        self,
        server: ServerState,
        request: Request,
        key: str,
        route: str,
        fields: frozenset[str] = frozenset(),
        names: dict[str, str] | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self._server, self._request, self._key, self._route = server, request, key, route
        self._fields, self._names = fields, names or {}
        self._streams: list[RequestStream] = []
        self._timers: list[RequestTimer | None] = []
        self._begun: set[int] = set()
        self._results: dict[int, RequestResult] = {}
        self._trace: Trace | None = None
        self._ended: DraftproofError | ClientGoneError | None = None
        self._held = AsyncExitStack()

    async def __aenter__(self) -> Generation:
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._server.admission.enter(self._key))
            watch = asyncio.create_task(self._watch_client())
            held.callback(watch.cancel)
            limit = self._server.settings.request_timeout_s
            if limit:
                held.callback(asyncio.get_running_loop().call_later(limit, self._expire, limit).cancel)
            self._held = held.pop_all()
        if self._server.tracing is not None:
            self._trace = self._server.tracing.started(self._route, self.id, self._request.headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abort()
        for index in range(len(self._timers)):
            self._finish(index, self._reason(error), None)
        if self._trace is not None:
            results = [self._results[index] for index in sorted(self._results)]
            self._trace.ended(results, self._ended or error)
        await self._held.aclose()

    async def prepared(self, work: Callable[[], T]) -> T:
        """What `work` gives, done beside the event loop: tokenising may take a while.

        Raises:
            ServerError: the engine refuses something; `param` names the client's field.
        """
        try:
            return await asyncio.to_thread(work)
        except RequestError as error:
            raise renamed(error, self._fields, self._names) from error

    async def start(self, jobs: Sequence[Job]) -> None:
        """Hand the jobs to the engine.

        Raises:
            ServerError: one of them is not acceptable; `param` names the field.
            ClientGoneError: nobody waits for them any more.
        """
        for job in jobs:
            self._require_wanted()
            timer = self._server.metrics.started(self._route)
            self._timers.append(timer)
            try:
                self._streams.append(await self._added(job))
            except RequestError as error:
                raise renamed(error, self._fields, self._names) from error
        self._require_wanted()

    def _require_wanted(self) -> None:
        if self._ended is not None:
            raise self._ended

    async def _added(self, job: Job) -> RequestStream:
        # A thread works on it, which goes on if this task is cancelled; what it adds then has to be ended.
        adding = asyncio.ensure_future(
            self._server.engine.add_request(job.prompt_token_ids, job.params, priority=job.priority)
        )
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:
            adding.add_done_callback(self._end_added)
            raise

    def _end_added(self, adding: asyncio.Future[RequestStream]) -> None:
        if not adding.cancelled() and adding.exception() is None:
            self._server.engine.abort(adding.result().request_id)

    async def events(self) -> AsyncIterator[tuple[int, StreamEvent]]:
        """The events of all jobs as they come, each with its job's number.

        Raises:
            DraftproofError: a job failed, the time was up, or the server ended it.
            ClientGoneError: the client closed the connection.
        """
        source = self._one(0) if len(self._streams) == 1 else self._merged()
        async for index, event in source:
            self._note(index, event)
            if event.finish_reason == "abort":
                raise self._ended or ServerError(
                    "DP641", "the server ended this request before it was complete"
                )
            yield index, event

    async def results(self) -> list[RequestResult]:
        """All results, in order of the jobs. Raises what `events` raises."""
        async for _ in self.events():
            pass
        return [self._results[index] for index in range(len(self._streams))]

    async def _one(self, index: int) -> AsyncIterator[tuple[int, StreamEvent]]:
        try:
            async for event in self._streams[index]:
                yield index, event
        except DraftproofError:
            self._finish(index, "error", None)
            raise

    async def _merged(self) -> AsyncIterator[tuple[int, StreamEvent]]:
        arrived: asyncio.Queue[tuple[int, StreamEvent] | Exception | None] = asyncio.Queue()

        async def pump(index: int) -> None:
            try:
                async for pair in self._one(index):
                    arrived.put_nowait(pair)
                arrived.put_nowait(None)
            except Exception as error:
                arrived.put_nowait(error)

        pumps = [asyncio.create_task(pump(index)) for index in range(len(self._streams))]
        try:
            running = len(pumps)
            while running:
                pair = await arrived.get()
                if pair is None:
                    running -= 1
                elif isinstance(pair, Exception):
                    raise pair
                else:
                    yield pair
        finally:
            for task in pumps:
                task.cancel()

    def _note(self, index: int, event: StreamEvent) -> None:
        timer = self._timers[index]
        if timer is None:
            return
        if event.token_ids:
            if index not in self._begun:
                self._begun.add(index)
                timer.first_token()
                if self._trace is not None and len(self._begun) == 1:
                    self._trace.first_token()
            timer.tokens(len(event.token_ids))
        if event.result is not None:
            self._results[index] = event.result
            self._finish(index, event.result.finish_reason, event.result)

    def _finish(self, index: int, reason: str, result: RequestResult | None) -> None:
        timer, self._timers[index] = self._timers[index], None
        if timer is not None:
            timer.finished(reason, result)

    def _reason(self, error: BaseException | None) -> str:
        """Why what still runs ends now, for the metrics."""
        if isinstance(self._ended, DraftproofError):
            return "timeout"
        return "error" if isinstance(error, Exception) and self._ended is None else "abort"

    async def _watch_client(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGoneError())

    def _expire(self, limit: float) -> None:
        self._end(
            ServerError(
                "DP640", f"the request took longer than the {limit:g} seconds that this server allows"
            )
        )

    def _end(self, why: DraftproofError | ClientGoneError) -> None:
        self._ended = self._ended or why
        self._abort()

    def _abort(self) -> None:
        for stream, timer in zip(self._streams, self._timers, strict=False):
            if timer is not None:  # it has not finished
                self._server.engine.abort(stream.request_id)
