"""Prompts of an audit: from a file or built in, varied however few are taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.audit import BUILT_IN, AuditPrompt, read_prompts
from draftproof.audit.prompts import encoded
from draftproof.errors import RequestError
from support.llms import tiny_llm


def test_groups_take_turns() -> None:
    groups = [prompt.group for prompt in read_prompts(None, 8)]
    assert len(set(groups)) == 8
    assert {prompt.text for prompt in read_prompts(None, 99)} == {prompt.text for prompt in BUILT_IN}


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    lines = [
        {"group": "math", "prompt": "1 + 1"},
        {"group": "math", "prompt": "2 + 2"},
        {"prompt": "Grüße", "turns": ["Grüße", "noch einmal"]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    assert read_prompts(path, 9) == [
        AuditPrompt("math", "1 + 1"),
        AuditPrompt("", "Grüße"),
        AuditPrompt("math", "2 + 2"),
    ]
    assert read_prompts(path, 1) == [AuditPrompt("math", "1 + 1")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"prompt": "fine"}\n{"prompt": ', "line 2: expected a JSON object"),
        (b'["a"]\n', "line 1: expected a field 'prompt'"),
        (b'{"prompt": " "}\n', "line 1: expected a field 'prompt'"),
        (b'{"text": "a"}\n', "line 1: expected a field 'prompt'"),
        (b"\xff\xfe", "not UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RequestError, match=said) as caught:
        read_prompts(path, 5)
    assert caught.value.code == "DP460"


def test_no_prompt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    for path, limit in ((tmp_path / "empty", 5), (None, 0)):
        with pytest.raises(RequestError, match="no prompts") as caught:
            read_prompts(path, limit)
        assert caught.value.code == "DP461"


def test_the_chat_template_is_used_where_there_is_one() -> None:
    llm = tiny_llm()
    text = llm.tokenizer.decode(encoded(llm, [AuditPrompt("", "Hello")])[0])
    assert "user" in text
    assert text.endswith("assistant\n")
