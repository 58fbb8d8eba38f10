"""From the bytes of a request to a checked body; whatever is wrong with them becomes one coded error that names the field."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from draftproof.errors import ServerError
from draftproof.server.protocol.refused import Refused, drop_refused

Model = TypeVar("Model", bound=BaseModel)
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
"""Only where this stands in a body can a text hold half a surrogate pair."""


async def read_body(
    request: Request, model: type[Model], refused: Mapping[str, Refused] | None = None
) -> Model:
    """The request's body as a `model`.

    Args:
        request: with a JSON body.
        model: what it must be.
        refused: fields that `model` has not and whose refusal deserves words of its own.

    Raises:
        ServerError: DP630, no JSON object; DP631, DP632, DP633, DP637, a field is at fault.
    """
    _check_type(request)
    body = parse_object(await request.body())
    return validated(model, drop_refused(body, refused or {}))


def parse_object(raw: bytes) -> dict[str, Any]:
    """A JSON object from bytes.

    Raises:
        ServerError: DP630.
    """
    try:
        # UTF-8 is the one encoding of JSON between machines (RFC 8259, 8.1); a mark at the front is ignored.
        body = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _no_json(f"not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise _no_json("nested too deeply") from error
    except json.JSONDecodeError as error:
        raise _no_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:  # a number with more digits than Python reads
        raise _no_json("a number has too many digits") from error
    if not isinstance(body, dict):
        raise _no_json(f"an object is expected, got {_kind(body)}")
    if _HALF_PAIR.search(raw):
        _check_text(body)
    return body


def validated(model: type[Model], body: Mapping[str, Any]) -> Model:
    """The body as a `model`. Raises `ServerError` DP631, DP632 or DP637 of its first fault."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise _fault(_worst(faults), model) from None
    except RecursionError as error:
        raise _no_json("nested too deeply") from error


def _check_type(request: Request) -> None:
    # A page of another site can make a browser send any other type without asking this server first.
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ServerError("DP630", f"the content type must be application/json, got {kind[:60] or 'none'}")


def _check_text(body: dict[str, Any]) -> None:
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _no_json("a string holds half a surrogate pair, which is no text") from error


def _no_json(what: str) -> ServerError:
    return ServerError("DP630", f"the body is not acceptable as JSON: {what}")


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _worst(faults: list[ErrorDetails]) -> ErrorDetails:
    """The fault to report: an unknown field first, for it often is the cause of a missing one."""
    for fault in faults:
        if fault["type"] == "extra_forbidden":
            return fault
    return faults[0]


def _fault(fault: ErrorDetails, model: type[BaseModel]) -> ServerError:
    param = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return ServerError(
            "DP632", f"{_shown(param)} is not a known field{_guess(param, model)}", param[:200]
        )
    if fault["type"] == "missing":
        return ServerError("DP637", f"{param} is missing", param)
    said = fault["msg"].replace("Input should be", "must be").replace("Input should", "must")
    return ServerError("DP631", f"{_shown(param)}: {said}, got {_value(fault['input'])}", param[:200])


def _guess(param: str, model: type[BaseModel]) -> str:
    if "." in param:
        return ""
    close = difflib.get_close_matches(param[:60], list(model.model_fields), n=1)
    return f": did you mean {close[0]}?" if close else ""


def _shown(param: str) -> str:
    return param if len(param) <= 80 else param[:77] + "..."


def _value(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "an array"
    try:
        text = repr(value)
    except ValueError:
        return "a very large number"
    return text if len(text) <= 60 else text[:57] + "..."
