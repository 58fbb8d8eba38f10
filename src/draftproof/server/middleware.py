"""Around every request: an id and a line in the log, a net under faults, a limit to bodies.

Written against ASGI itself: Starlette's own middleware base runs each request in a further task, through which a stream's every
chunk would have to pass.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.errors import ServerError
from draftproof.server.errors import error_response
from draftproof.server.logs import ACCESS, RequestNote, current, log_fields, note_of
from draftproof.server.metrics import ServerMetrics

logger = logging.getLogger("draftproof.server")
access = logging.getLogger(ACCESS)
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ANSWER = 499
"""Status in the log where the client left before there was one."""
MOST_LOGGED = 1 << 16
"""Characters of a body that the log takes."""


class Access:
    """Gives each request an id, and the log and the metrics what there is to say of it at its end.

    Args:
        app: what is inside.
        metrics: counts the answers.
        lines: whether there is a line in the log.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, lines: bool) -> None:
        self._app, self._metrics, self._lines = app, metrics, lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        # Whatever else a client sends there would be written into the log.
        note = RequestNote(given if _ID.fullmatch(given) else uuid.uuid4().hex)
        scope.setdefault("state", {})["note"] = note
        token = current.set(note)
        began, status = time.monotonic(), NO_ANSWER

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = note.id
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            self._tell(scope, note, status, time.monotonic() - began)
            current.reset(token)

    def _tell(self, scope: Scope, note: RequestNote, status: int, seconds: float) -> None:
        # The address as the routes name it: as clients write it, there would be a counter for each typing error.
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.answers.labels(route, method, str(status)).inc()
        if not self._lines:
            return
        client = scope.get("client")
        fields: dict[str, Any] = {
            "request_id": note.id,
            "client": client[0] if client else None,
            "key": note.key,
            "method": method,
            "path": scope["path"][:200],
            "status": status,
            "code": note.code,
            "seconds": round(seconds, 4),
            "prompt_tokens": note.prompt_tokens,
            "completion_tokens": note.completion_tokens,
        }
        if note.body is not None:
            fields["body"] = note.body
        log_fields(access, "request", fields)


class Guard:
    """A net under faults nobody foresaw: the client gets a code, the log the traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            logger.exception("a request failed")
            note_of(scope).code = "DP608"
            if begun:
                return  # the web server breaks the connection: an answer cut short must not look whole
            error = ServerError("DP608", "something went wrong inside the server; its log says what")
            await error_response(error)(scope, receive, send)


class BodyLimit:
    """Bodies must be short enough and come in time.

    Args:
        app: what is inside.
        most: bytes.
        seconds: for the body to come whole; 0: no limit.
        keep: whether the log wants the text.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float, keep: bool) -> None:
        self._app, self._most, self._seconds, self._keep = app, most, seconds, keep

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._most:
            note_of(scope).code = "DP607"
            await error_response(self._too_long())(scope, receive, send)
            return
        await self._app(scope, self._limited(scope, receive), send)

    def _limited(self, scope: Scope, receive: Receive) -> Callable[[], Awaitable[Message]]:
        size, whole = 0, False
        deadline = time.monotonic() + self._seconds

        async def limited() -> Message:
            nonlocal size, whole
            if whole:  # what comes now is the client's going
                return await receive()
            message = await self._in_time(receive, deadline)
            if message["type"] == "http.request":
                part = message.get("body", b"")
                size += len(part)
                whole = not message.get("more_body", False)
                # A body sent in chunks announces no length.
                if size > self._most:
                    raise self._too_long()
                if self._keep and part:
                    note = note_of(scope)
                    note.body = ((note.body or "") + part.decode("utf-8", "replace"))[:MOST_LOGGED]
            return message

        return limited

    async def _in_time(self, receive: Receive, deadline: float) -> Message:
        if not self._seconds:
            return await receive()
        # Not `wait_for`: before Python 3.12 it may lose a cancellation that comes together with the message.
        coming = asyncio.ensure_future(receive())
        try:
            done, _ = await asyncio.wait({coming}, timeout=max(deadline - time.monotonic(), 0.001))
        except asyncio.CancelledError:
            coming.cancel()
            raise
        if done:
            return coming.result()
        coming.cancel()
        raise ServerError("DP613", f"the body did not come whole within {self._seconds:g} seconds")

    def _too_long(self) -> ServerError:
        return ServerError("DP607", f"the body is longer than the {self._most} bytes that this server takes")
