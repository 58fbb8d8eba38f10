"""From the first request to the last: a server that, told to end, lets what runs finish while it turns new requests away."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from draftproof.engine import AsyncEngine
from draftproof.errors import ServerError
from draftproof.server.settings import ServerSettings
from draftproof.server.state import ServerState

logger = logging.getLogger("draftproof.server")
LAST_WORDS = 5.0
"""Seconds that ended requests have to say so to their clients."""


def open_port(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: before the model is loaded nobody can connect, but the address is ours.

    Raises:
        ServerError: DP611, the address cannot be had.
    """
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(kind, socket.SOCK_STREAM)
    except OSError as error:
        raise ServerError("DP611", f"{host} is no address of this machine: {error.strerror}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ServerError("DP611", f"cannot listen at {host}, port {port}: {error.strerror}") from error
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL at which a bound socket is reached from this machine."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class DrainingServer(uvicorn.Server):
    """uvicorn, with another way to end.

    The first SIGTERM or SIGINT: ``/ready`` answers 503 and new requests are refused with 503, through a port that stays open;
    what runs has the grace time to finish, then it is aborted. The second signal: everything ends at once.

    Args:
        config: of uvicorn.
        state: of the app.
        on_start: called once the port listens.

    Attributes:
        ended_by: the signal that cut everything short, or None.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._state, self._on_start = state, on_start
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self.ended_by: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it; then the word that it is done."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self._loop is None or self._state.admission.draining:
            self.ended_by = sig
            self.should_exit = self.force_exit = True
            return
        self._state.admission.draining = True
        self._loop.call_soon_threadsafe(self._begin_to_drain, signal.Signals(sig).name)

    def _begin_to_drain(self, name: str) -> None:
        self._draining = asyncio.ensure_future(self._drain(name))

    async def _drain(self, name: str) -> None:
        state = self._state
        logger.info(
            "%s: %d requests have %g seconds to finish", name, state.admission.inside, state.settings.grace_s
        )
        try:
            if not await state.admission.until_empty(state.settings.grace_s):
                logger.warning("the grace time is over: %d requests are ended", state.admission.inside)
                await state.engine.drain(timeout=0)
                await state.admission.until_empty(LAST_WORDS)
        finally:
            self.should_exit = True


def _set_aside_what_stays() -> None:
    """Leave what has been loaded out of garbage collection for good.

    A request and its outputs refer to one another, so that they go with a full collection. Python makes one once objects have
    grown by a quarter, and a model and its libraries have so many that finished requests would wait for long.
    """
    gc.collect()
    gc.freeze()


def run_server(
    app: FastAPI,
    engine: AsyncEngine,
    settings: ServerSettings,
    bound: socket.socket,
    on_start: Callable[[], None] = lambda: None,
) -> int:
    """Serve until a signal ends it; the engine is closed afterwards.

    Args:
        app: of `create_app`.
        engine: the app's.
        settings: the app's.
        bound: of `open_port`.
        on_start: called once requests are taken.

    Returns:
        The exit status: 0 after an orderly end, 128 + the signal's number when a second one cut it short.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        # A proxy in front is believed only where uvicorn's own variable FORWARDED_ALLOW_IPS says so.
        proxy_headers=True,
        root_path=settings.root_path,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(LAST_WORDS),
        ws="none",
    )
    server = DrainingServer(config, app.state.server, on_start)
    _set_aside_what_stays()
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()
        asyncio.run(engine.close())
        if app.state.server.tracing is not None:
            app.state.server.tracing.close()
    return 0 if server.ended_by is None else 128 + server.ended_by
