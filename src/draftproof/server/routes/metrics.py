"""`GET /metrics`, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from draftproof.server.auth import caller_key
from draftproof.server.metrics import CONTENT_TYPE
from draftproof.server.state import server_of

router = APIRouter()


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """The numbers, as text."""
    server = server_of(request)
    if server.settings.metrics_need_key:
        await caller_key(request)
    return Response(await run_in_threadpool(server.metrics.text), media_type=CONTENT_TYPE)
