"""`GET /api/errors` and `GET /api/errors/{code}`: what `draftproof explain` says. No key needed: it is the same everywhere."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from draftproof.errors import ALL, ServerError, explanation

router = APIRouter()


@router.get("/api/errors", response_model=None)
async def listed() -> Response:
    """All errors: code, name and title."""
    entries = [{"code": entry.code, "name": entry.name, "title": entry.title} for entry in ALL]
    return JSONResponse({"object": "list", "data": entries})


@router.get("/api/errors/{code}", response_model=None)
async def explained(code: str) -> Response:
    """One error, by code (`DP604`) or name (`queue-full`)."""
    try:
        return JSONResponse(asdict(explanation(code)))
    except KeyError:
        raise ServerError(
            "DP614", f"no error is called {code[:60]!r}; /api/errors lists them all", "code"
        ) from None
