"""The types that request fields are made of.

Values of sampling fields are passed on as they came: `SamplingParams` checks them and says in its own coded errors what is wrong.
Here they only get the schema that the OpenAPI document shows.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, WithJsonSchema


class Body(BaseModel):
    """A JSON object of a request: no field beyond those named, no value of another type than the one asked for."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=(), populate_by_name=True)


def _number(**bounds: float) -> Any:
    return WithJsonSchema({"type": "number", **bounds})


def _whole(**bounds: int) -> Any:
    return WithJsonSchema({"type": "integer", **bounds})


_STRINGS = {"type": "array", "items": {"type": "string"}}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}

Temperature = Annotated[Any, _number(minimum=0)]
Share = Annotated[Any, _number(minimum=0, maximum=1)]
Penalty = Annotated[Any, _number(minimum=-2, maximum=2)]
Factor = Annotated[Any, _number(exclusiveMinimum=0)]
Whole = Annotated[Any, _whole()]
Count = Annotated[Any, _whole(minimum=0)]
Positive = Annotated[Any, _whole(minimum=1)]
Switch = Annotated[Any, WithJsonSchema({"type": "boolean"})]
Strings = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS]})]
TokenIds = Annotated[Any, WithJsonSchema(_IDS)]
Biases = Annotated[
    Any,
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}
    ),
]
Prompts = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS, _IDS, {"type": "array", "items": _IDS}]}),
]
Schema = Annotated[Any, WithJsonSchema({"type": "object"})]
DraftLength = Annotated[
    Any, WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0}]})
]
"""What to draft: ``"auto"`` or a number of tokens; 0 for none."""
