"""`GET /v1/models`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from draftproof.server.auth import caller_key
from draftproof.server.protocol import openapi_answers
from draftproof.server.routes import unbuilt
from draftproof.server.state import ServerState, server_of

router = APIRouter()


@router.get("/v1/models", responses=openapi_answers(), response_model=None)
async def models(request: Request, key: Annotated[str, Depends(caller_key)]) -> Response:
    """The served names; all stand for the one model there is."""
    server = server_of(request)
    names = server.settings.served_model_names or (server.model_name,)
    return JSONResponse({"object": "list", "data": [_model(server, name) for name in names]})


@router.get("/v1/models/{name:path}", responses=openapi_answers(), response_model=None)
async def model(request: Request, name: str, key: Annotated[str, Depends(caller_key)]) -> Response:
    """One of them."""
    server = server_of(request)
    server.check_model(name)
    return JSONResponse(_model(server, name))


def _model(server: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": server.started,
        "owned_by": "draftproof",
        "root": server.llm.target.name,
        "parent": None,
        "max_model_len": server.llm.max_model_len,
    }


router.include_router(unbuilt.router)
