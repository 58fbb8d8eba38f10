"""The playground: one page and its few files, served from the package. Nothing comes from elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, HTTPException, Request, Response

router = APIRouter(include_in_schema=False)

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Whatever a model writes into the page, it can load nothing, run nothing and send nothing to another host."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and answered with 304 while it is the same
}


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    kind: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """Every file of the page, by name."""
    found = {}
    for file in files("draftproof.server").joinpath("playground").iterdir():
        kind = KINDS.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, kind, f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return found


@router.api_route("/", methods=["GET", "HEAD"])
def page(request: Request) -> Response:
    """The page."""
    return _answer("index.html", request)


@router.api_route("/playground/{name}", methods=["GET", "HEAD"])
def asset(name: str, request: Request) -> Response:
    """A file that the page asks for."""
    return _answer(name, request)


def _answer(name: str, request: Request) -> Response:
    found = assets().get(name)
    if found is None:
        raise HTTPException(404, f"the playground has no file {name!r}")
    headers = {**HEADERS, "ETag": found.tag}
    if found.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.kind, headers=headers)
