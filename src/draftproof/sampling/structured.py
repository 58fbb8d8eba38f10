"""`StructuredOutputs`: what the output must look like, as the user says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, NoReturn

from draftproof.errors import RequestError


@dataclass(frozen=True)
class StructuredOutputs:
    """The form the output must have. Exactly one field is set.

    Attributes:
        json: a JSON schema: as text, as a dictionary, or a pydantic model class. Stored as text; properties come out
            in the order in which the schema names them.
        regex: a regular expression that the whole output matches (Rust syntax: no look-around, no back-references).
        grammar: a Lark grammar with a rule `start`.
        choice: strings, one of which is the whole output.
        json_object: True: any JSON object.

    Raises:
        RequestError: DP444, none or several set, or one of the wrong type; DP445, a schema that is not JSON. Whether
            the schema, expression or grammar can be used is found out when the request is added.
    """

    json: str | Mapping[str, Any] | type | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: tuple[str, ...] | list[str] | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            _refuse("json_object", "True or False", self.json_object)
        given = self._given()
        if len(given) != 1:
            names = ", ".join(field.name for field in dataclass_fields(self))
            raise RequestError(
                "DP444",
                f"structured_outputs must have exactly one of {names} set, got {' and '.join(given) or 'none'}",
            )
        self._store("json", None if self.json is None else _schema_text(self.json))
        for name in ("regex", "grammar"):
            _check_text(name, getattr(self, name))
        self._store("choice", None if self.choice is None else _choices(self.choice))

    @property
    def kind(self) -> str:
        """Name of the field that is set."""
        return self._given()[0]

    def _given(self) -> list[str]:
        named = [name for name in ("json", "regex", "grammar", "choice") if getattr(self, name) is not None]
        return named + ["json_object"] * self.json_object

    def _store(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _refuse(field: str, expected: str, value: object) -> NoReturn:
    raise RequestError("DP444", f"structured_outputs.{field} must be {expected}, got {repr(value)[:80]}")


def _check_text(field: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        _refuse(field, "a string", value)
    if not value:
        _refuse(field, "a string with at least one character", value)


def _choices(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        _refuse("choice", "a list of at least one string", value)
    for index, item in enumerate(value):
        if not isinstance(item, str) or not item:
            _refuse(f"choice[{index}]", "a string with at least one character", item)
    return tuple(value)


def _schema_text(value: object) -> str:
    """The schema as JSON text. Keys keep their order: it is the order of the properties in the output."""
    if isinstance(value, str):
        try:
            schema = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestError("DP445", f"structured_outputs.json is not JSON: {error}") from error
    elif isinstance(value, Mapping):
        schema = dict(value)
    else:
        schema = _schema_of_model(value)
    if schema is True:
        schema = {}  # the same in long form: anything
    if not isinstance(schema, dict):
        raise RequestError(
            "DP445", f"structured_outputs.json must be a schema (an object), got {repr(schema)[:80]}"
        )
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        text.encode()  # half a surrogate pair is no text
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            "DP445", f"structured_outputs.json holds what JSON cannot express: {error}"
        ) from error


def _schema_of_model(value: object) -> object:
    # Asked for by its method, so that pydantic need not be installed for those who do not use it.
    method = getattr(value, "model_json_schema", None)
    if not isinstance(value, type) or method is None:
        _refuse("json", "a JSON schema (text or dictionary) or a pydantic model class", value)
    return method()
