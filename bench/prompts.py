"""Prompts for benchmarks: any JSONL with `group` and `prompt` (and `turns` for conversations)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BenchPrompt:
    """One prompt of a group; of a conversation, the first turn."""

    group: str
    index: int
    text: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.text}]


def read_prompts(path: Path, per_group: int) -> list[BenchPrompt]:
    """The first `per_group` prompts of every group, in the file's order."""
    seen: dict[str, int] = {}
    prompts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        index = seen.get(row["group"], 0)
        if index < per_group:
            text = row["turns"][0] if row.get("turns") else row["prompt"]
            prompts.append(BenchPrompt(row["group"], index, text))
            seen[row["group"]] = index + 1
    return prompts
