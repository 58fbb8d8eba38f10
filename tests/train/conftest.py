"""A small random model on disk with a chat template, and files of prompts, for whole training runs."""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path

import pytest
from run_cases import Case

from support.llms import CHAT_TEMPLATE
from support.tiny import make_model
from support.tiny_tokenizers import tiny_tokenizer


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The model and the prompts of every run here; where a run goes is the test's."""
    folder = tmp_path_factory.mktemp("training")
    tokenizer = copy(tiny_tokenizer("byte_level"))
    tokenizer.chat_template = CHAT_TEMPLATE
    make_model("llama", vocab=len(tokenizer)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    _write(folder / "prompts.jsonl", [f"What is {n} plus {7 * n}? Show the steps." for n in range(20)])
    _write(
        folder / "held-out.jsonl", [f"Tell me about {name}." for name in ("cats", "trees", "rivers", "salt")]
    )
    return Case(str(folder / "model"), folder / "prompts.jsonl", folder / "held-out.jsonl")


def _write(path: Path, prompts: list[str]) -> None:
    rows = [{"group": "ab"[number % 2], "prompt": prompt} for number, prompt in enumerate(prompts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
