"""Files of answers: read as they come, and whole again after a kill at any byte."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import RequestError
from draftproof.train.responses import (
    AboutResponses,
    MadeUpPrompt,
    Response,
    ResponseFile,
    check_vocabulary,
    in_order,
    read_responses,
    response_key,
    within_budget,
)

ABOUT = AboutResponses("tiny", "abc", 16, 0.7, None, 3)


def answer(number: int, length: int = 3) -> Response:
    prompt = (1, number)
    return Response(
        prompt, tuple(range(length)), 0.7 * (number % 2), f"g{number % 3}", response_key(prompt, "x")
    )


def test_a_plain_file_is_read_as_it_stands(tmp_path: Path) -> None:
    rows = [
        {"prompt_ids": [5, 6], "output_ids": [7], "temperature": 0.7, "note": "kept by others"},
        {"prompt_ids": [1], "output_ids": [2, 3], "group": "math"},
        {"prompt_ids": [1], "output_ids": [2, 3], "temperature": None, "group": None},
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    assert read_responses(path) == [
        Response((5, 6), (7,), 0.7),
        Response((1,), (2, 3), 0.0, "math"),
        Response((1,), (2, 3)),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        "{}",
        '{"prompt_ids": [1]}',
        '{"prompt_ids": [], "output_ids": [1]}',
        '{"prompt_ids": [1], "output_ids": []}',
        '{"prompt_ids": [1], "output_ids": [1.5]}',
        '{"prompt_ids": [1], "output_ids": [-1]}',
        '{"prompt_ids": [true], "output_ids": [1]}',
        '{"prompt_ids": "ab", "output_ids": [1]}',
        '{"prompt_ids": [1], "output_ids": [1], "temperature": "warm"}',
        '{"draftproof_responses": 99}',
        '{"draftproof_responses": 1, "target": "x"}',
        '{"made_up_prompt": "one", "text": ""}',
    ],
)
def test_a_bad_line_is_named_and_a_cut_last_one_dropped(tmp_path: Path, line: str) -> None:
    good = '{"prompt_ids": [1], "output_ids": [2], "key": "a"}\n'
    path = tmp_path / "r.jsonl"
    path.write_text(good + line + "\n" + good, encoding="utf-8")
    for read in (read_responses, ResponseFile):
        with pytest.raises(RequestError, match="line 2") as caught:
            read(path)
        assert caught.value.code == "DP501"
    path.write_text(good + line, encoding="utf-8")
    assert len(read_responses(path)) == 1


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    (tmp_path / "about").write_text(json.dumps({"made_up_prompt": 0, "text": "a"}) + "\n", encoding="utf-8")
    for name in ("missing", "empty", "about", "."):
        with pytest.raises(RequestError) as caught:
            read_responses(tmp_path / name)
        assert caught.value.code == "DP501"


def test_what_is_written_is_read_in_order_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.jsonl"
    answers = [answer(number) for number in range(20)]
    with ResponseFile(path, ABOUT) as file:
        for one in answers:
            file.add(one)
        file.add(replace(answers[0], output_ids=(9, 9)))  # known by its key
        file.add_made_up(MadeUpPrompt(1, 'two "words"\u2028 \ud800'))
        file.add_made_up(MadeUpPrompt(0, ""))
        assert file.pending == 23
        assert file.done_keys() == {one.key for one in answers}
    wanted = sorted(answers, key=lambda one: one.key)
    assert read_responses(path) == wanted == in_order(answers)
    again = ResponseFile(path, ABOUT)
    assert (again.responses(), len(again), again.pending) == (wanted, 20, 0)
    assert [prompt.number for prompt in again.made_up()] == [0, 1]
    assert again.made_up()[1].text == 'two "words"\u2028 \ud800'
    again.close()


def test_a_file_cut_at_any_byte_goes_on_without_loss_or_doubles(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    answers = [answer(number) for number in range(4)]
    with ResponseFile(whole, ABOUT) as file:
        for one in answers:
            file.add(one)
        file.add_made_up(MadeUpPrompt(0, "a question"))
    content = whole.read_bytes()
    for size in range(len(content)):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(content[:size])
        with ResponseFile(path, ABOUT) as file:
            assert len(file) <= content[:size].count(b"\n")
            for one in answers:
                file.add(one)
            file.add_made_up(MadeUpPrompt(0, "a question"))
        assert read_responses(path) == in_order(answers)
        assert sorted(path.read_bytes().splitlines()) == sorted(content.splitlines())


WRITER = """
import sys
from pathlib import Path
from draftproof.train.responses import AboutResponses, Response, ResponseFile
file = ResponseFile(Path(sys.argv[1]), AboutResponses("tiny", "abc", 16, 0.7, None, 3))
number = 0
while True:
    file.add(Response((1, number), tuple(range(500)), 0.0, "", f"{number:08d}"))
    file.flush()
    print(number, flush=True)
    number += 1
"""


def test_a_killed_writer_loses_nothing_it_flushed(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(40):
        last = int(writer.stdout.readline())
    writer.kill()
    writer.wait()
    writer.stdout.close()
    with ResponseFile(path, ABOUT) as file:
        assert {f"{number:08d}" for number in range(last + 1)} <= file.done_keys()
        assert all(len(one.output_ids) == 500 for one in file.responses())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("checksum", "other", "answers of tiny, not of tiny"),
        ("target", "smaller", "answers of tiny, not of smaller"),
        ("max_tokens", 32, r"max_tokens 16 \(asked for: 32\)"),
        ("temperature", 1.0, "temperature 0.7"),
        ("top_p", 0.9, "top_p None"),
        ("seed", 4, "seed 3"),
    ],
)
def test_answers_of_another_run_are_not_added_to(
    tmp_path: Path, field: str, value: object, said: str
) -> None:
    path = tmp_path / "r.jsonl"
    ResponseFile(path, ABOUT).close()
    before = path.read_bytes()
    with pytest.raises(RequestError, match=said) as caught:
        ResponseFile(path, replace(ABOUT, **{field: value}))  # type: ignore[arg-type]
    assert (caught.value.code, path.read_bytes()) == ("DP503", before)
    ResponseFile(path, replace(ABOUT, target="elsewhere/tiny")).close()


def test_a_file_that_does_not_say_whose_it_is_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"prompt_ids": [1], "output_ids": [2], "key": "a"}\n', encoding="utf-8")
    with pytest.raises(RequestError, match="does not say") as caught:
        ResponseFile(path, ABOUT)
    assert caught.value.code == "DP503"
    path.write_text('{"prompt_ids": [1], "output_ids": [2]}\n', encoding="utf-8")
    with pytest.raises(RequestError, match="without a key"):
        ResponseFile(path)


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RequestError, match="cannot write") as caught:
        ResponseFile(tmp_path / "file" / "r.jsonl", ABOUT)
    assert caught.value.code == "DP501"
    with ResponseFile(tmp_path / "ok.jsonl", ABOUT) as file, pytest.raises(ValueError, match="needs a key"):
        file.add(Response((1,), (2,)))


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 60))
def test_a_budget_takes_the_fewest_first_answers_that_fill_it(lengths: list[int], budget: int) -> None:
    answers = [answer(number, length) for number, length in enumerate(lengths)]
    kept = within_budget(answers, budget)
    assert kept == answers[: len(kept)]
    size = sum(len(one.output_ids) for one in kept)
    assert size >= budget or kept == answers
    assert not kept or size - len(kept[-1].output_ids) < budget
    assert within_budget(answers, None) == answers


def test_another_vocabulary_is_refused() -> None:
    check_vocabulary([Response((1,), (99,))], 100, "tiny")
    for response in (Response((1,), (100,)), Response((100,), (1,))):
        with pytest.raises(RequestError, match="token 100, and tiny has 100") as caught:
            check_vocabulary([response], 100, "tiny")
        assert caught.value.code == "DP502"


def test_keys_tell_prompts_and_variants_apart_and_stay() -> None:
    keys = {
        response_key(ids, variant) for ids in ((1,), (1, 2), (12,)) for variant in ("greedy", "sampled 0")
    }
    assert len(keys) == 6
    assert response_key([1, 2], "greedy") == response_key((1, 2), "greedy") == "244f40857d727f09"
