"""What the OpenAPI document says of bodies and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_TEXT_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _TEXT_OR_NULL,
                "code": _TEXT_OR_NULL,
                "explanation": _TEXT_OR_NULL,
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_JSON = {"application/json": {"schema": {"type": "object"}}}


def openapi_answers(streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """The answers of a route, for its `responses`.

    Args:
        streams: whether it can answer by server-sent events, too.
    """
    stream = {"text/event-stream": {"schema": {"type": "string"}}} if streams else {}
    refused = {"description": "Refused, with a code", "content": {"application/json": {"schema": _ERROR}}}
    return {
        200: {"description": "The answer", "content": {**_JSON, **stream}},
        "4XX": refused,
        "5XX": refused,
    }


def openapi_body(model: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI document says of a body, for a route's `openapi_extra`."""
    schema = model.model_json_schema(ref_template="#/$defs/{model}")
    parts = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, parts)}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: Any, parts: Mapping[str, Any]) -> Any:
    """The schema with every reference replaced by what it names: inside a larger document they would lead nowhere."""
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        named = parts[schema["$ref"].rsplit("/", 1)[1]]
        return _inlined({**named, **{key: value for key, value in schema.items() if key != "$ref"}}, parts)
    return {key: _inlined(value, parts) for key, value in schema.items()}
