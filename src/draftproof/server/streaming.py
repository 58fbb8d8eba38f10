"""Server-sent events: chunks go out as they come; whatever ends the stream is said in it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftproof.errors import DraftproofError, ServerError
from draftproof.server.errors import error_body
from draftproof.server.protocol.answers import DONE
from draftproof.server.protocol.gone import ClientGoneError

logger = logging.getLogger("draftproof.server")
COMMENT = b": still here\n\n"
"""An event without data: clients skip it."""


class EventStream(Response):
    """A streamed answer.

    The status is sent before the first chunk is there, so that clients and proxies see at once that the request runs. The watch
    over the client's connection is the generation's; this class only writes.

    Args:
        chunks: text of whole events.
        held: closed with the stream, however it ends; the generation is in it.
        keep_alive_s: seconds of silence after which a comment is sent; 0: none is.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[str], held: AsyncExitStack, keep_alive_s: float) -> None:
        # A proxy that collects output before it passes it on would undo the streaming.
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        self.status_code, self.background, self.body = 200, None, b""
        self.init_headers(headers)
        self._chunks, self._held, self._keep_alive_s = chunks, held, keep_alive_s
        self._sent = 0

    def init_headers(self, headers: object = None) -> None:
        super().init_headers(headers)  # type: ignore[arg-type]
        # Not known in advance.
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
            last = DONE
            breath = asyncio.create_task(self._breathe(send)) if self._keep_alive_s else None
            try:
                async for text in self._chunks:
                    self._sent += 1
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            except ClientGoneError:
                last = ""
            except DraftproofError as error:
                last = _said(error) + DONE
            except Exception:
                logger.exception("a stream failed")
                last = (
                    _said(ServerError("DP643", "something went wrong inside the server; its log says what"))
                    + DONE
                )
            finally:
                if breath is not None:
                    breath.cancel()
            await send({"type": "http.response.body", "body": last.encode(), "more_body": False})

    async def _breathe(self, send: Send) -> None:
        """Comments in times of silence, as while a request waits for a place. Whole events are sent: they mix with none."""
        while True:
            before = self._sent
            await asyncio.sleep(self._keep_alive_s)
            if self._sent == before:
                await send({"type": "http.response.body", "body": COMMENT, "more_body": True})


def _said(error: DraftproofError) -> str:
    return "data: " + json.dumps(error_body(error)) + "\n\n"
