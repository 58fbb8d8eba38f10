"""Clients that do not wait: their requests end quietly, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

GONE = 499
"""Status for the log of a request whose client did not wait; nobody receives it."""


class ClientGoneError(Exception):
    """The client has closed the connection; nobody is left to tell."""


class QuietRoute(APIRoute):
    """A route that takes a client's going for what it is, and no fault of the server."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def quietly(request: Request) -> Response:
            try:
                return await answer(request)
            except (ClientDisconnect, ClientGoneError):
                return Response(status_code=GONE)

        return quietly
