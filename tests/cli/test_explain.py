"""`draftproof explain`."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from command_line import Run

from draftproof.errors import ALL


@pytest.mark.parametrize(
    "wanted", ["DP204", "dp204", "204", "model-weights-truncated", "error[DP204]", " DP204 "]
)
def test_by_code_or_name(run: Run, wanted: str) -> None:
    done = run("explain", wanted)
    assert done.status == 0
    assert done.out.startswith("DP204  A weights file is cut short or damaged  (model-weights-truncated)")
    for heading in (
        "What it means",
        "What triggers it",
        "How to fix it",
        "Before",
        "After",
        "How to prevent it",
    ):
        assert f"\n{heading}\n" in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.code)
def test_every_word_of_every_explanation_is_shown(run: Run, entry: object) -> None:
    done = run("explain", entry.code)  # type: ignore[attr-defined]
    shown = "".join(done.out.split())
    for value in asdict(entry).values():  # type: ignore[call-overload]
        for text in [value] if isinstance(value, str) else value:
            assert "".join(text.rstrip(".").split()) in shown


def test_json(run: Run) -> None:
    done = run("explain", "DP204", "--json")
    entry = next(entry for entry in ALL if entry.code == "DP204")
    assert json.loads(done.out) == json.loads(json.dumps(asdict(entry)))


def test_all(run: Run) -> None:
    lines = run("explain").out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(entry.code for entry in ALL)
    titles = {entry.code: entry.title.rstrip(".") for entry in ALL}
    assert all(line.endswith(f"  {titles[line.split()[0]]}") for line in lines)
    documents = json.loads(run("explain", "--json").out)
    assert [document["code"] for document in documents] == [line.split()[0] for line in lines]
    fields = "code name title meaning triggers fix before after prevention"
    assert set(documents[0]) == set(fields.split())


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_an_unknown_code(run: Run, as_json: list[str]) -> None:
    done = run("explain", "DP20", *as_json)
    assert done.status == 2
    assert not done.out
    assert "no error has the code or name 'DP20'" in done.err
    assert "Did you mean DP200 (unknown-model) or DP201" in done.err
    assert "Did you mean DP1" in run("explain", "DP199").err
    assert "`draftproof explain` lists all" in run("explain", "DP999").err
    assert "`draftproof explain` lists all" in run("explain", "zzzzzz").err


def test_a_misspelt_name_finds_its_code(run: Run) -> None:
    assert "DP204 (model-weights-truncated)" in run("explain", "model-weight-truncated").err
