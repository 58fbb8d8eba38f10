"""`GET /health` and `GET /ready`: for whatever watches over the server. No key needed."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from draftproof.errors import ServerError
from draftproof.server.admission import DRAINING_WAIT, OverloadedError
from draftproof.server.errors import error_response
from draftproof.server.state import server_of

router = APIRouter()


@router.get("/health", response_model=None)
async def health(request: Request) -> Response:
    """Whether the process works; 503 means that it should be started again."""
    if not server_of(request).engine.healthy:
        return error_response(ServerError("DP609", "the engine does not work at the moment"))
    return JSONResponse({"status": "ok"})


@router.get("/ready", response_model=None)
async def ready(request: Request) -> Response:
    """Whether requests should come here now; 503 while the server is about to end."""
    server = server_of(request)
    if server.admission.draining:
        return error_response(OverloadedError("DP606", "the server is shutting down", DRAINING_WAIT))
    if not server.engine.healthy:
        return error_response(ServerError("DP609", "the engine does not work at the moment"))
    return JSONResponse({"status": "ready", "model": server.model_name})
