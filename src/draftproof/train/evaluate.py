"""How good a drafter is: held-out prompts, decoded with it by the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftproof.engine import LLM, RequestResult
from draftproof.engine.prompt_files import FilePrompt
from draftproof.models.drafters import load_drafter
from draftproof.sampling import SamplingParams

TOGETHER = 16
"""Prompts decoded at once. The tokens of one do not depend on the others."""


@dataclass(frozen=True)
class GroupScore:
    """One group of held-out prompts.

    Attributes:
        group: its name.
        prompts: decoded.
        steps: decode steps, one target pass each.
        tokens: committed by them.
    """

    group: str
    prompts: int
    steps: int
    tokens: int

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per decode step, bonus included (tau); 0.0 before any step."""
        return self.tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class Evaluation:
    """Acceptance of a drafter on held-out prompts, by decoding them greedily with whole blocks.

    Attributes:
        step: optimizer steps the drafter had behind it.
        max_tokens: most tokens decoded a prompt.
        seconds: it took.
        groups: in the order of the prompts.
    """

    step: int
    max_tokens: int
    seconds: float
    groups: tuple[GroupScore, ...]

    @property
    def mean(self) -> float:
        """Mean acceptance length of the groups; every group counts the same, whatever its size."""
        scores = [group.acceptance_length for group in self.groups if group.steps]
        return sum(scores) / len(scores) if scores else 0.0

    def as_json(self) -> dict[str, Any]:
        """For a line of JSON Lines; the ratios are in it for those who read it by eye."""
        row = asdict(self)
        for group, score in zip(row["groups"], self.groups, strict=True):
            group["acceptance_length"] = round(score.acceptance_length, 4)
        return {**row, "mean": round(self.mean, 4)}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Evaluation:
        """The inverse of `as_json`."""
        groups = tuple(
            GroupScore(group["group"], group["prompts"], group["steps"], group["tokens"])
            for group in row["groups"]
        )
        return cls(row["step"], row["max_tokens"], row["seconds"], groups)


def evaluate(
    llm: LLM,
    drafter: Path,
    prompts: Sequence[FilePrompt],
    *,
    step: int,
    max_tokens: int,
    advance: Callable[[int], None] = lambda count: None,
) -> Evaluation:
    """Decode prompts with a drafter.

    Args:
        llm: the target, with any drafter or none.
        drafter: folder of a checkpoint in the published layout.
        prompts: of any groups.
        step: for the result.
        max_tokens: most tokens a prompt.
        advance: called with the number of prompts done after every batch.

    Raises:
        DrafterError: the checkpoint does not load (DP3xx).
    """
    began = time.perf_counter()
    loaded = load_drafter(drafter, llm.target.info)
    drafting = llm.with_drafter(loaded, draft_mode=f"fixed={loaded.max_draft_tokens}")
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    counted: dict[str, list[int]] = {}
    for start in range(0, len(prompts), TOGETHER):
        batch = prompts[start : start + TOGETHER]
        for prompt, result in zip(batch, answers(drafting, batch, params), strict=True):
            count = counted.setdefault(prompt.group, [0, 0, 0])
            for place, more in enumerate((1, result.stats.target_steps, result.stats.decode_tokens)):
                count[place] += more
        advance(len(batch))
    groups = tuple(GroupScore(name, *count) for name, count in counted.items())
    return Evaluation(step, max_tokens, time.perf_counter() - began, groups)


def first_of_each_group(prompts: Sequence[FilePrompt], count: int) -> list[FilePrompt]:
    """The first `count` prompts of every group, in their order."""
    taken: dict[str, int] = {}
    chosen = []
    for prompt in prompts:
        if taken.get(prompt.group, 0) < count:
            taken[prompt.group] = taken.get(prompt.group, 0) + 1
            chosen.append(prompt)
    return chosen


def answers(llm: LLM, prompts: Sequence[FilePrompt], params: SamplingParams) -> list[RequestResult]:
    """The target's answers: through its chat template, or from the bare text where it has none."""
    if getattr(llm.tokenizer, "chat_template", None):
        return llm.chat([prompt.chat for prompt in prompts], params, progress=False)
    return llm.generate([prompt.text for prompt in prompts], params, progress=False)
