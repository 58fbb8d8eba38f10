"""The engine for asyncio: requests stream while a thread of its own steps, so that the event loop never waits for a pass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

from draftproof.engine.llm import LLM
from draftproof.engine.metrics import Metrics
from draftproof.engine.prompts import Messages, Prompt
from draftproof.engine.results import RequestResult, StreamEvent
from draftproof.errors import EngineError
from draftproof.sampling import SamplingParams

IDLE_LOOK = 0.5
"""Seconds after which an idle thread looks whether it should end; work wakes it at once."""


class RequestStream:
    """The events of one request, in order: ``async for event in stream``; or all at once: ``await stream.result()``.

    Leaving the loop early does not end the request; `abort` does, and so does `aclose`.

    Attributes:
        request_id: for `AsyncEngine.abort`.
    """

    def __init__(self, request_id: str, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id = request_id
        self._engine, self._loop = engine, loop
        self._events: asyncio.Queue[StreamEvent] = asyncio.Queue()
        self._result: RequestResult | None = None

    def _deliver(self, event: StreamEvent) -> None:
        """From the engine's thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

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
        self._thread = threading.Thread(target=self._run, name="draftproof-engine", daemon=True)
        self._thread.start()

    async def add_request(
        self,
        prompt: Prompt | None = None,
        params: SamplingParams | None = None,
        *,
        messages: Messages | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        priority: int = 0,
    ) -> RequestStream:
        """Take a request in; it starts with the next step.

        Args:
            prompt: text or token ids; or None with `messages`.
            params: the model's defaults when None.
            messages: a conversation for the model's chat template, instead of a prompt.
            chat_template_kwargs: extra variables for the template.
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
            self._prepare, loop, prompt, params, messages, chat_template_kwargs, request_id, priority
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
        while not self._ending:
            self._wake.clear()
            while self.llm.loop.step():
                if self._ending:
                    break
            self._wake.wait(IDLE_LOOK)
        self.llm.loop.step()  # carries out what was aborted last
