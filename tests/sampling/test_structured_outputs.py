"""StructuredOutputs: what is taken, and what is refused before any tokenizer is looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftproof.errors import RequestError
from draftproof.sampling import StructuredOutputs

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}


def test_a_schema_may_be_text_or_a_dictionary_and_keeps_its_order() -> None:
    by_dict = StructuredOutputs(json=SCHEMA)
    by_text = StructuredOutputs(json=json.dumps(SCHEMA, indent=2))
    assert by_dict == by_text
    assert hash(by_dict) == hash(by_text)
    assert by_dict.kind == "json"
    assert isinstance(by_dict.json, str)
    assert list(json.loads(by_dict.json)["properties"]) == ["b", "a"]


def test_a_schema_may_be_a_pydantic_model_class() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("City", name=(str, ...), people=(int, ...))
    assert json.loads(str(StructuredOutputs(json=model).json)) == model.model_json_schema()
    with pytest.raises(RequestError, match="pydantic model class"):
        StructuredOutputs(json=model(name="Rome", people=3))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"regex": "a"}, "regex"),
        ({"grammar": 'start: "a"'}, "grammar"),
        ({"choice": ["a", "b"]}, "choice"),
        ({"json_object": True}, "json_object"),
        ({"json": "true"}, "json"),
    ],
)
def test_each_form_says_its_kind(fields: dict[str, Any], kind: str) -> None:
    assert StructuredOutputs(**fields).kind == kind


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of json, regex, grammar, choice, json_object set, got none"),
        ({"json_object": False}, "got none"),
        ({"regex": "a", "json_object": True}, "got regex and json_object"),
        ({"json": {}, "choice": ["a"]}, "got json and choice"),
        ({"json_object": 1}, "json_object must be True or False, got 1"),
        ({"json": 5}, "json must be a JSON schema"),
        ({"json": True}, "json must be a JSON schema"),
        ({"json": int}, "json must be a JSON schema"),
        ({"regex": b"a"}, "regex must be a string, got b'a'"),
        ({"regex": ""}, "regex must be a string with at least one character"),
        ({"grammar": 5}, "grammar must be a string, got 5"),
        ({"choice": []}, "choice must be a list of at least one string, got "),
        ({"choice": "yes"}, "choice must be a list of at least one string, got 'yes'"),
        ({"choice": ["a", ""]}, "choice[1] must be a string with at least one character, got ''"),
        ({"choice": ["a", 5]}, "choice[1] must be a string with at least one character, got 5"),
    ],
)
def test_what_is_no_form_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredOutputs(**fields)
    assert caught.value.code == "DP444"
    assert message in caught.value.message


@pytest.mark.parametrize(
    "schema",
    [
        '{"type": "integer",}',
        "",
        "[1]",
        "3",
        '"a"',
        {"enum": [object()]},
        {"const": float("nan")},
        {"const": "\ud800"},
        "[" * 100_000,
    ],
)
def test_what_is_no_json_schema_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError, match=r"^structured_outputs\.json ") as caught:
        StructuredOutputs(json=schema)
    assert caught.value.code == "DP445"
    assert len(caught.value.message) < 300


def test_a_schema_that_contains_itself_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["anyOf"] = [schema]
    with pytest.raises(RequestError) as caught:
        StructuredOutputs(json=schema)
    assert caught.value.code == "DP445"
