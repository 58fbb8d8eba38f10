"""Prompts files and workloads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.bench import BUILT_IN, BenchOptions, BenchPrompt, read_prompts, workloads
from draftproof.bench.prompts import digest
from draftproof.errors import RequestError


def test_a_file_gives_its_prompts_in_order(tmp_path: Path) -> None:
    rows = [
        {"group": "code", "prompt": "one"},
        {"prompt": "two", "more": 1},
        {"group": "chat", "turns": ["three", "four"]},
    ]
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    assert read_prompts(file) == [
        BenchPrompt("code", "one"),
        BenchPrompt("prompts", "two"),
        BenchPrompt("chat", "three"),
    ]


def test_a_line_separator_inside_a_text_is_no_new_line(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(file)] == ["a\u2028b"]


@pytest.mark.parametrize(
    "line", ["[1]", "{", '{"text": "x"}', '{"prompt": " "}', '{"prompt": 3}', '{"turns": [1]}', '"prompt"']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(RequestError, match="line 2") as caught:
        read_prompts(file)
    assert caught.value.code == "DP470"


def test_no_file_and_no_line(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    for name in ("missing", "empty", "bytes"):
        with pytest.raises(RequestError) as caught:
            read_prompts(tmp_path / name)
        assert caught.value.code == "DP470"


def test_workloads_take_groups_or_all_in_turn() -> None:
    prompts = [BenchPrompt("a", "1"), BenchPrompt("a", "2"), BenchPrompt("b", "3")]
    assert [p.text for p in workloads(prompts)["mixed"]] == ["1", "3", "2"]
    assert list(workloads(prompts, ["b"])) == ["b"]
    assert list(workloads(prompts, ["all"])) == ["a", "b", "mixed"]
    with pytest.raises(RequestError, match="there are a, b, mixed") as caught:
        workloads(prompts, ["A"])
    assert caught.value.code == "DP471"


def test_the_built_in_set_has_groups_of_one_size() -> None:
    sizes = {name: len(group) for name, group in workloads(BUILT_IN, ["all"]).items()}
    assert set(sizes) == {"prose", "code", "math", "lists", "mixed"}
    assert sizes.pop("mixed") == len(BUILT_IN)
    assert len(set(sizes.values())) == 1
    assert len({prompt.text for prompt in BUILT_IN}) == len(BUILT_IN)


def test_the_digest_tells_sets_apart() -> None:
    assert digest(BUILT_IN) == digest(tuple(BUILT_IN))
    assert digest(BUILT_IN) != digest(BUILT_IN[:-1])
    assert digest([BenchPrompt("a", "b")]) != digest([BenchPrompt("b", "a")])


@pytest.mark.parametrize(
    "wrong",
    [
        {"batches": ()},
        {"batches": (4, 0)},
        {"rounds": 0},
        {"max_tokens": 1},
        {"modes": ()},
        {"temperatures": ()},
        {"temperatures": (-0.1,)},
        {"temperatures": (float("nan"),)},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
)
def test_options_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        BenchOptions(**wrong)  # type: ignore[arg-type]
    assert caught.value.code == "DP472"


def test_a_mode_that_does_not_exist() -> None:
    with pytest.raises(RequestError) as caught:
        BenchOptions(modes=("off", "fast"))
    assert caught.value.code == "DP440"
