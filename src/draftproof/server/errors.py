"""Errors as clients of OpenAI's API expect them, with the codes of `draftproof explain`."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from draftproof.errors import ContractError, DraftproofError, RequestError, ServerError
from draftproof.server.logs import note_of

logger = logging.getLogger("draftproof.server")

_STATUS = {
    "DP452": 503,  # the engine takes no more: only while the server ends
    "DP600": 404,
    "DP601": 401,
    "DP602": 404,
    "DP603": 405,
    "DP604": 429,
    "DP605": 429,
    "DP606": 503,
    "DP607": 413,
    "DP608": 500,
    "DP609": 503,
    "DP613": 408,
    "DP614": 404,
    "DP634": 404,
    "DP640": 408,
    "DP641": 503,
    "DP643": 500,
}
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def status_of(error: DraftproofError) -> int:
    """The HTTP status of an error: 400 for what a request got wrong, 500 for what went wrong in here, others by code."""
    if error.code in _STATUS:
        return _STATUS[error.code]
    return 400 if isinstance(error, (RequestError, ContractError, ServerError)) else 500


def error_body(error: DraftproofError, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape, for answers and inside streams.

    Args:
        error: what to say.
        param: field of the request at fault; the error's own when None.
    """
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {
        "message": _shown(error, status),
        "type": kind,
        "param": param if param is not None else getattr(error, "param", None),
        "code": error.code,
        "explanation": f"/api/errors/{error.code}",
    }
    return {"error": body}


def error_response(error: DraftproofError, headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer to a request that failed."""
    status = status_of(error)
    more = dict(headers or {})
    if status == 401:
        more["WWW-Authenticate"] = "Bearer"
    retry_after = getattr(error, "retry_after", None)
    if retry_after is not None:
        more["Retry-After"] = str(retry_after)
    if status in (408, 413):
        more["Connection"] = "close"  # what else the client sends is not going to be read
    if error.code == "DP640":
        # OpenAI's clients send a request again after a 408: a server that was too slow for it once would get it three times.
        more["x-should-retry"] = "false"
    return JSONResponse(error_body(error), status, more)


def install_errors(app: FastAPI) -> None:
    """Give every error of the app this shape. What nobody foresaw is `middleware.Guard`'s."""
    app.add_exception_handler(DraftproofError, _coded)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)


def _shown(error: DraftproofError, status: int) -> str:
    # What an error of the engine says may hold paths, values or texts of other requests.
    if status == 500 and not isinstance(error, ServerError):
        return "the engine failed while it worked on this request; the server's log says why"
    return error.message


async def _coded(request: Request, error: Exception) -> Response:
    assert isinstance(error, DraftproofError)
    note_of(request.scope).code = error.code
    if status_of(error) == 500:
        logger.error("a request failed: %s %s", error.code, error.message)
    return error_response(error)


async def _http(request: Request, error: Exception) -> Response:
    """What the router itself refuses: unknown addresses and wrong methods."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    headers = dict(error.headers or {})
    if error.status_code == 404:
        usual = error.detail in ("Not Found", None)
        found = ServerError("DP602", f"there is nothing at {path}" if usual else str(error.detail))
    elif error.status_code == 405:
        allowed = headers.get("allow") or headers.get("Allow") or "another method"
        found = ServerError("DP603", f"{request.method[:20]} is not possible at {path}, only {allowed}")
    elif error.status_code < 500:
        found = ServerError("DP630", f"the request cannot be read: {error.detail}")
    else:
        found = ServerError("DP608", "something went wrong inside the server; its log says what")
    note_of(request.scope).code = found.code
    return error_response(found, headers)


async def _invalid(request: Request, error: Exception) -> Response:
    """Parameters in an address or header that cannot be read (bodies are checked by the protocol)."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    param = ".".join(str(part) for part in fault["loc"][1:])[:200]
    found = ServerError("DP631", f"{param or 'the request'}: {fault['msg']}", param or None)
    note_of(request.scope).code = found.code
    return error_response(found)
