"""One reader of prompts for every command that takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.engine.prompt_files import FilePrompt, read_prompt_file
from draftproof.errors import RequestError


def read(path: Path, *rows: object) -> list[FilePrompt]:
    path.write_text("\n \n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return read_prompt_file(path, "DP500")


def test_every_form_of_a_line(tmp_path: Path) -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "what somebody else answered"},
    ]
    rows = [
        {"prompt": "one\u2028two", "group": "g", "answer": "kept by others"},
        {"turns": ["first", "second"]},
        {"prompt": "asked", "turns": ["asked", "later"], "group": None},
        {"messages": talk, "group": 7},
    ]
    prompts = read(tmp_path / "p.jsonl", *rows)
    assert prompts == [
        FilePrompt.asking("one\u2028two", "g"),
        FilePrompt((("user", "first"),), "", ("second",)),
        FilePrompt((("user", "asked"),), "", ("later",)),
        FilePrompt((("system", "Be brief."), ("user", "a\nb"), ("assistant", "c"), ("user", "d")), "7"),
    ]
    assert [prompt.text for prompt in prompts] == ["one\u2028two", "first", "asked", "a\nb"]
    assert prompts[1].texts == ("first", "second")
    assert prompts[3].texts == ("a\nb", "d")
    assert prompts[3].chat[-1] == {"role": "user", "content": "d"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([1], "expected a field 'prompt'"),
        ("prompt", "expected a field 'prompt'"),
        ({"text": "a"}, "expected a field 'prompt'"),
        ({"prompt": None}, "expected a field 'prompt'"),
        ({"prompt": "\n"}, "expected a field 'prompt'"),
        ({"prompt": 3, "turns": ["a"]}, "expected a field 'prompt'"),
        ({"turns": []}, "expected a list of texts under 'turns'"),
        ({"turns": "ab"}, "expected a list of texts under 'turns'"),
        ({"prompt": "fine", "turns": ["a", 1]}, "expected a list of texts under 'turns'"),
        ({"messages": []}, "expected a conversation"),
        ({"messages": {"role": "user"}}, "expected a conversation"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "expected a conversation"),
        ({"messages": [{"role": "user", "content": " "}]}, "expected a conversation"),
        ({"messages": [{"content": "a"}]}, "expected 'role' and a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "expected 'role' and a text"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(RequestError, match=f"line 3: {said}") as caught:
        read(tmp_path / "p.jsonl", {"prompt": "fine"}, row)
    assert caught.value.code == "DP500"


def test_the_code_is_the_caller_s_own(tmp_path: Path) -> None:
    for code in ("DP460", "DP470"):
        with pytest.raises(RequestError) as caught:
            read_prompt_file(tmp_path / "missing", code)
        assert caught.value.code == code
    (tmp_path / "bom").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n')
    assert read_prompt_file(tmp_path / "bom", "DP460") == [FilePrompt.asking("a")]
    (tmp_path / "half").write_text('{"prompt": "a"}\n{"prompt"', encoding="utf-8")
    with pytest.raises(RequestError, match="line 2: expected a JSON object"):
        read_prompt_file(tmp_path / "half", "DP460")
