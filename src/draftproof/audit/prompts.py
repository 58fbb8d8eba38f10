"""What is asked in an audit: prompts of a JSON Lines file, or a small varied set of our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftproof.engine import LLM
from draftproof.engine.prompt_files import read_prompt_file
from draftproof.engine.prompts import encode_chat, encode_prompt
from draftproof.errors import RequestError


@dataclass(frozen=True)
class AuditPrompt:
    """A question and the kind of text it belongs to."""

    group: str
    text: str


BUILT_IN: tuple[AuditPrompt, ...] = (
    AuditPrompt("chat", "Why is the sky blue? Explain it to a child of eight."),
    AuditPrompt(
        "math", "A baker sells 14 loaves at $3 each and 9 cakes at $12 each. How much money does she take in?"
    ),
    AuditPrompt(
        "code", "Write a Python function that returns the longest common prefix of a list of strings."
    ),
    AuditPrompt("list", "Name twelve rivers, one per line, numbered."),
    AuditPrompt("copy", "Repeat this sentence five times: the quick brown fox jumps over the lazy dog."),
    AuditPrompt(
        "summarise",
        "Summarise in one sentence: Bees visit flowers for nectar and pollen. While they move from flower to flower, "
        "pollen sticks to their bodies and reaches other plants, which can then make seeds. Many crops depend on this, "
        "so farmers near wild meadows often harvest more. When meadows disappear, bees find less food in spring and "
        "autumn, colonies grow weaker, and the harvest of fruit trees falls.",
    ),
    AuditPrompt("chat", "Give me three tips for a first job interview."),
    AuditPrompt("math", "What is 17 times 23? Show the steps."),
    AuditPrompt("code", "Show an SQL query that counts the orders of each customer, most orders first."),
    AuditPrompt(
        "languages", "Übersetze ins Deutsche: The train leaves at half past six. 今天天气很好。 Здравствуйте!"
    ),
    AuditPrompt("short", "Hi"),
    AuditPrompt(
        "story", "Write the opening of a story about a lighthouse keeper who finds a letter in a bottle."
    ),
    AuditPrompt("qa", "Who wrote 'Pride and Prejudice', and in which century?"),
    AuditPrompt("json", 'Return a JSON object with the fields "city", "country" and "population" for Paris.'),
    AuditPrompt("symbols", "Continue: 1, 2, 4, 8, 16, 32, 64,"),
    AuditPrompt(
        "chat", "Plan a weekend in a town by the sea: a morning, an afternoon and an evening for each day."
    ),
)
"""Written for this purpose: short and long answers, prose, code, lists, repetition, several scripts."""


def read_prompts(path: Path | None, limit: int) -> list[AuditPrompt]:
    """Prompts to audit with, spread over their groups.

    Args:
        path: a JSON Lines file, an object a line, as `engine.prompt_files` reads them; of a conversation the user's first
            text is asked. None: `BUILT_IN`.
        limit: how many at most, >= 1. Groups take turns, each from its first prompt on.

    Raises:
        RequestError: DP460, the file cannot be read or a line is not such an object; DP461, no prompt is left.
    """
    if path is None:
        every = list(BUILT_IN)
    else:
        every = [AuditPrompt(line.group, line.text) for line in read_prompt_file(path, "DP460")]
    chosen = _in_turn(every)[: max(0, limit)]
    if not chosen:
        raise RequestError(
            "DP461", f"no prompts: {path or 'the built-in set'} has {len(every)}, limit is {limit}"
        )
    return chosen


def _in_turn(prompts: Sequence[AuditPrompt]) -> list[AuditPrompt]:
    """One of each group after the other, so that the first few are as varied as they can be."""
    seen: dict[str, int] = {}
    order: list[tuple[int, int]] = []
    for index, prompt in enumerate(prompts):
        order.append((seen.get(prompt.group, 0), index))
        seen[prompt.group] = seen.get(prompt.group, 0) + 1
    return [prompts[index] for _, index in sorted(order)]


def encoded(llm: LLM, prompts: Sequence[AuditPrompt]) -> list[list[int]]:
    """Token ids: each prompt as a user's message where the model has a chat template, as it is where it has none.

    Raises:
        RequestError: DP401 to DP406; DP402, a prompt is longer than the model's context.
    """
    vocabulary, length = llm.target.info.vocab_size, llm.max_model_len
    if not getattr(llm.tokenizer, "chat_template", None):
        return [encode_prompt(llm.tokenizer, prompt.text, vocabulary, length) for prompt in prompts]
    return [
        encode_chat(llm.tokenizer, [{"role": "user", "content": prompt.text}], vocabulary, length)
        for prompt in prompts
    ]
