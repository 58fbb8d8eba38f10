"""The catalog and the code agree: what is raised is explained, and what is explained is raised."""

from __future__ import annotations

import ast
import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from draftproof.errors import (
    ALL,
    ContractError,
    DrafterError,
    DraftproofError,
    Explanation,
    ModelError,
    RequestError,
    explanation,
)
from draftproof.errors.catalog import drafters, models, requests, targets, verify

SOURCE = Path(__file__).parents[2] / "src" / "draftproof"
CODE = re.compile(r"DP\d{3}")
FAMILIES = {"ContractError": "DP1", "ModelError": "DP2", "DrafterError": "DP3", "RequestError": "DP4"}
TOOLS = "DP5"
"""Codes of training, export and doctor, which are at fault with requests, models and drafters alike."""
CODES = {entry.code for entry in ALL}


def mentions() -> Iterator[tuple[str, ast.AST, str]]:
    """Place, node and code of every code that the package names outside the catalog and docstrings."""
    for file in sorted(SOURCE.rglob("*.py")):
        if "catalog" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                yield f"{file.relative_to(SOURCE)}:{node.lineno}", node, node.value


def test_every_code_in_the_source_is_in_the_catalog() -> None:
    unknown = [f"{place}: {code}" for place, _, code in mentions() if code not in CODES]
    assert not unknown, "\n".join(unknown)


def test_every_code_in_the_catalog_is_raised_somewhere() -> None:
    unused = CODES - {code for _, _, code in mentions()}
    assert not unused, sorted(unused)


def test_each_error_class_keeps_to_its_family() -> None:
    wrong = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            first = node.args[0]
            family = FAMILIES.get(node.func.id)
            if (
                family
                and isinstance(first, ast.Constant)
                and not str(first.value).startswith((family, TOOLS))
            ):
                wrong.append(f"{file.name}:{node.lineno}: {node.func.id}({first.value!r})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("entries", "low", "high"),
    [
        (verify.EXPLANATIONS, 100, 199),
        (models.EXPLANATIONS, 200, 249),
        (targets.EXPLANATIONS, 250, 299),
        (drafters.EXPLANATIONS, 300, 399),
        (requests.EXPLANATIONS, 400, 499),
    ],
    ids=["verify", "models", "targets", "drafters", "requests"],
)
def test_each_file_keeps_to_its_range(entries: tuple[Explanation, ...], low: int, high: int) -> None:
    assert entries
    assert [entry.code for entry in entries if not low <= int(entry.code[2:]) <= high] == []


def test_codes_names_and_titles_are_unique() -> None:
    for name in ("code", "name", "title"):
        values = [getattr(entry, name).lower() for entry in ALL]
        assert sorted(values) == sorted(set(values)), name


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.code)
def test_every_explanation_is_complete(entry: Explanation) -> None:
    assert CODE.fullmatch(entry.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", entry.name)
    for field in fields(entry):
        value = getattr(entry, field.name)
        texts = value if isinstance(value, tuple) else (value,)
        assert texts
        assert all(isinstance(text, str) and text.strip() == text.strip("\n") and text for text in texts), (
            field
        )
    assert "\n" not in entry.title
    assert entry.before != entry.after
    for sentence in (entry.meaning, entry.prevention, entry.fix):
        assert sentence[-1] in ".)!?`", sentence
    assert json.loads(json.dumps(asdict(entry)))["code"] == entry.code


@pytest.mark.parametrize(
    ("kind", "code"),
    [(ContractError, "DP1"), (ModelError, "DP2"), (DrafterError, "DP3"), (RequestError, "DP4")],
)
def test_an_error_carries_code_name_and_message(kind: type[DraftproofError], code: str) -> None:
    known = next(entry for entry in ALL if entry.code.startswith(code))
    error = kind(known.code, "expected 3, got 4")
    assert (str(error), error.message, error.code, error.name) == (
        "expected 3, got 4",
        "expected 3, got 4",
        known.code,
        known.name,
    )
    assert isinstance(error, ValueError) == (kind in (ContractError, RequestError))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.message) == (kind, error.code, error.message)


def test_an_error_without_an_explanation_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        ModelError("DP999", "never")


def test_look_up_by_code_or_name_whatever_the_case() -> None:
    for entry in ALL:
        assert explanation(f" {entry.code.lower()} ") is entry
        assert explanation(entry.name.upper()) is entry
