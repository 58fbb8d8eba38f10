"""The engine for asyncio: requests stream while a thread of its own steps, so that the event loop never waits for a pass."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from draftproof.engine.chat_options import ChatOptions
from draftproof.engine.llm import LLM
from draftproof.engine.metrics import Metrics
from draftproof.engine.prompts import Messages, Prompt
from draftproof.engine.results import RequestResult, StreamEvent
from draftproof.errors import EngineError
from draftproof.sampling import SamplingParams

IDLE_LOOK = 0.5
"""Seconds after which an idle thread looks whether it should end; work wakes it at once."""
STUCK_AFTER = 60.0
"""Seconds after which a step counts as hanging."""
AFTER_FAILURE = 0.05
"""Seconds between a step that failed as a whole and the next try."""

_log = logging.getLogger(__name__)


class RequestStream:
    """The events of one request, in order: ``async for event in stream``; or all at once: ``await stream.result()``.

    Leaving the loop early does not end the request; `abort` does, and so does `aclose`.

    Attributes:
        request_id: for `AsyncEngine.abort`.
        first_event_time: ``time.monotonic()`` when its first event was made; None until it is here.
    """

    def __init__(self, request_id: str, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id = request_id
        self._engine, self._loop = engine, loop
        self._events: asyncio.Queue[StreamEvent] = asyncio.Queue()
        self._result: RequestResult | None = None
        self.first_event_time: float | None = None

    def _deliver(self, event: StreamEvent) -> None:
        """From whichever thread steps the engine."""
        self._engine._outbox.put(self._loop, self, event)

    def _take(self, event: StreamEvent) -> None:
        """In the event loop."""
        if self.first_event_time is None:
            self.first_event_time = event.time
        self._events.put_nowait(event)

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self

    async def __anext__(self) -> StreamEvent:
        """The next event.

        Raises:
            DraftproofError: the request failed; its result so far is on the error's `results`.
        """
        if self._result is not None:
            raise StopAsyncIteration
        event = await self._events.get()
        self._result = event.result
        if event.result is not None and event.result.error is not None:
            error = event.result.error
            error.results = [event.result]
            raise error
        return event

    async def result(self) -> RequestResult:
        """The whole result, once there is one. Raises what iterating raises."""
        async for _ in self:
            pass
        assert self._result is not None
        return self._result

    async def aclose(self) -> None:
        """End the request, if it still runs."""
        self._engine.abort(self.request_id)


class _Outbox:
    """Events on their way to event loops: those of a step go there together, since waking a loop costs more than an event.

    Events of one loop keep their order, whichever thread brings them.

    Attributes:
        stepper: the thread that calls `flush` after each step; what others bring goes at once.
    """

    def __init__(self) -> None:
        self.stepper: int | None = None
        self._waiting: dict[asyncio.AbstractEventLoop, deque[tuple[RequestStream, StreamEvent]]] = {}
        self._fresh: set[asyncio.AbstractEventLoop] = set()

    def put(self, loop: asyncio.AbstractEventLoop, stream: RequestStream, event: StreamEvent) -> None:
        """Take an event in. Raises RuntimeError when the loop is closed: its receiver is gone."""
        if loop.is_closed():
            self._waiting.pop(loop, None)
            raise RuntimeError("the event loop is closed")
        if loop not in self._waiting:
            for other in [known for known in self._waiting if known.is_closed()]:
                del self._waiting[other]
            self._waiting[loop] = deque()
        self._waiting[loop].append((stream, event))
        if threading.get_ident() == self.stepper:
            self._fresh.add(loop)
        else:
            loop.call_soon_threadsafe(self._hand_out, loop)

    def flush(self) -> None:
        """Wake every loop that the last step brought something for. From the stepping thread alone."""
        while self._fresh:
            loop = self._fresh.pop()
            with suppress(RuntimeError):  # closed meanwhile; the next event's `put` finds out
                loop.call_soon_threadsafe(self._hand_out, loop)

    def _hand_out(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting.get(loop)
        while waiting:
            stream, event = waiting.popleft()
            stream._take(event)


class AsyncEngine:
    """An `LLM`'s engine for asyncio.

    ::

        async with AsyncEngine(LLM("smollm2-135m", drafter="ngram")) as engine:
            stream = await engine.add_request("Once upon a time", SamplingParams(max_tokens=64))
            async for event in stream:
                print(event.text, end="")

    The `LLM` may go on to be used directly, too: all share one batch.

    Args:
        llm: target, drafter and options.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._wake = threading.Event()
        self._ending = False
        self._draining = False
        self._outbox = _Outbox()
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="draftproof-engine", daemon=True)
        self._thread.start()

    async def add_request(
        self,
        prompt: Prompt | None = None,
        params: SamplingParams | None = None,
        *,
        messages: Messages | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        chat: ChatOptions | None = None,
        request_id: str | None = None,
        priority: int = 0,
    ) -> RequestStream:
        """Take a request in; it starts with the next step.

        Args:
            prompt: text or token ids; or None with `messages`.
            params: the model's defaults when None.
            messages: a conversation for the model's chat template, instead of a prompt.
            chat_template_kwargs: extra variables for the template.
            chat: how the conversation becomes a prompt: tools, an open last message ...
            request_id: made up when None.
            priority: smaller goes first.

        Raises:
            RequestError: DP4xx, it is not acceptable (too long, a bad grammar ...). Nothing else notices.
            EngineError: DP452, the engine is draining or closed.
        """
        self._require_open()
        loop = asyncio.get_running_loop()
        # Tokenising and compiling a grammar may take a while; the event loop has other things to do.
        stream = await asyncio.to_thread(
            self._prepare, loop, prompt, params, messages, chat_template_kwargs, chat, request_id, priority
        )
        self._wake.set()
        return stream

    def _prepare(
        self,
        loop: asyncio.AbstractEventLoop,
        prompt: Prompt | None,
        params: SamplingParams | None,
        messages: Messages | None,
        chat_template_kwargs: Mapping[str, Any] | None,
        chat: ChatOptions | None,
        request_id: str | None,
        priority: int,
    ) -> RequestStream:
        stream = RequestStream("", self, loop)
        request = self.llm.prepare(
            prompt,
            params,
            stream._deliver,
            messages=messages,
            chat_template_kwargs=chat_template_kwargs,
            chat=chat,
            request_id=request_id,
            priority=priority,
        )
        stream.request_id = request.request_id
        self._require_open()
        self.llm.loop.add(request)
        return stream

    def abort(self, request_id: str) -> None:
        """End a request now; its stream gives one last event, finish reason ``"abort"``. Nothing happens to unknown ids."""
        self.llm.loop.abort(request_id)
        self._wake.set()

    @property
    def metrics(self) -> Metrics:
        """What the engine has done so far, as of the last step."""
        return self.llm.metrics

    @property
    def running(self) -> int:
        """Outputs being decoded, as of the last step."""
        return self.metrics.running

    @property
    def waiting(self) -> int:
        """Outputs that wait for a place or for memory, as of the last step."""
        return self.metrics.waiting

    @property
    def last_step_age(self) -> float:
        """Seconds since the step under way began; 0.0 while there is nothing to do."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    @property
    def healthy(self) -> bool:
        """Whether the engine's thread lives and no step hangs."""
        return self._thread.is_alive() and self.last_step_age <= STUCK_AFTER

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests, and wait until those that run have ended.

        Args:
            timeout: seconds after which what still runs is aborted; None: wait as long as it takes.

        Returns:
            Whether everything ended by itself.
        """
        self._draining = True
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while self.llm.loop.unfinished:
            if deadline is not None and asyncio.get_running_loop().time() >= deadline:
                self.llm.loop.abort_all()
                self._wake.set()
                return False
            await asyncio.sleep(0.01)
        return True

    async def close(self) -> None:
        """Abort what still runs and end the thread. Call `drain` first to let requests end."""
        self._draining = self._ending = True
        self.llm.loop.abort_all()
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.drain()
        await self.close()

    def _require_open(self) -> None:
        if self._draining:
            state = "closed" if self._ending else "draining"
            raise EngineError("DP452", f"the engine is {state} and takes no more requests")

    def _run(self) -> None:
        self._outbox.stepper = threading.get_ident()
        while not self._ending:
            self._wake.clear()
            while self._step():
                if self._ending:
                    break
            self._wake.wait(IDLE_LOOK)
        self._step()  # carries out what was aborted last

    def _step(self) -> bool:
        """One step, and its events on their way; whether anything is left to do."""
        self._step_began = time.monotonic()
        try:
            return self.llm.loop.step()
        except (
            Exception
        ):  # the core fails the requests of a bad step itself; whatever else comes must not end the thread
            _log.exception("a step of the engine failed")
            time.sleep(AFTER_FAILURE)
            return True
        finally:
            self._step_began = None
            self._outbox.flush()
