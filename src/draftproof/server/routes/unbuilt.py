"""Addresses of other servers that are not built here: refused by name, lest somebody look for a typing error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from draftproof.errors import ServerError
from draftproof.server.auth import caller_key

router = APIRouter()

_HINTS = {
    "/v1/responses": "use /v1/chat/completions",
    "/v1/responses/{rest:path}": "use /v1/chat/completions",
    "/v1/load_lora_adapter": "this server has no LoRA adapters; merge the adapter into the model",
    "/v1/unload_lora_adapter": "this server has no LoRA adapters; merge the adapter into the model",
    "/v1/embeddings": "this server generates text",
    "/v1/moderations": "this server generates text",
    "/v1/images/{rest:path}": "this server generates text",
    "/v1/audio/{rest:path}": "this server generates text",
    "/v1/batches": "send the requests; they run in one batch",
    "/v1/files": "send text in the requests",
    "/v1/messages": "use /v1/chat/completions",
    "/generate": "use /v1/completions",
}


def _refusing(hint: str) -> Callable[..., Awaitable[None]]:
    async def refuse(request: Request, key: Annotated[str, Depends(caller_key)]) -> None:
        raise ServerError("DP634", f"{request.url.path[:100]} is not built: {hint}")

    return refuse


for _path, _hint in _HINTS.items():
    router.add_api_route(_path, _refusing(_hint), methods=["GET", "POST", "DELETE"], include_in_schema=False)
