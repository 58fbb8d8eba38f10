"""Workloads: groups of prompts from a JSON Lines file, or a small set of our own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from draftproof.engine.prompt_files import read_prompt_file
from draftproof.errors import RequestError

MIXED = "mixed"
"""The workload of all groups in turn."""
EVERY_GROUP = "all"
"""Asks for each group of its own, and for all in turn."""


@dataclass(frozen=True)
class BenchPrompt:
    """A question, and the kind of text that answers it."""

    group: str
    text: str


def _built_in(group: str, *texts: str) -> tuple[BenchPrompt, ...]:
    return tuple(BenchPrompt(group, text) for text in texts)


BUILT_IN: tuple[BenchPrompt, ...] = (
    *_built_in(
        "prose",
        "Describe a morning at a harbour: the boats, the smells, the people at work.",
        "Explain how a refrigerator moves heat out of its inside.",
        "Write a letter that asks a landlord to repair a leaking tap.",
        "Tell the story of a clock that runs backwards for one day.",
        "What should a traveller know before a first winter in the mountains?",
        "Compare trains and buses for a town of fifty thousand people.",
    ),
    *_built_in(
        "code",
        "Write a Python class for a bank account with deposit, withdraw and a list of past transactions.",
        "Write a function in JavaScript that groups an array of objects by one of their keys.",
        "Show a shell script that renames all .jpeg files in a folder to .jpg and counts them.",
        "Write a Python function that merges two sorted lists without using sort.",
        "Write a C function that reverses a string in place, and explain each line.",
        "Give the SQL that creates tables for books, authors and loans, with their keys.",
    ),
    *_built_in(
        "math",
        "A train covers 360 km in 4 hours, stops for 30 minutes, and covers 150 km in 2 hours. What is its mean speed?",
        "A shirt costs $40 and is reduced by 15%, then by another 10%. What is the price now? Show the steps.",
        "How many different words can be made from the letters of LEVEL? Explain.",
        "Solve 3x + 7 = 2(x - 4) and check the answer.",
        "A tank fills in 6 hours through one pipe and in 3 hours through another. How long with both?",
        "List the first twelve multiples of 13 and add them up.",
    ),
    *_built_in(
        "lists",
        "Repeat the alphabet three times, one letter a line.",
        "List the months of the year with their number of days, one a line.",
        "Write the numbers from 1 to 40 as words, separated by commas.",
        "Make a table in Markdown of ten animals, their class and their food.",
        "Write a JSON list of five cities, each with name, country and population.",
        "Copy this line ten times: all work and no play makes a dull day.",
    ),
)
"""Written for this purpose: what is hard and what is easy to draft."""


def read_prompts(path: Path | None) -> list[BenchPrompt]:
    """Prompts to measure with, in the file's order.

    Args:
        path: JSON Lines, an object a line, as `engine.prompt_files` reads them; of a conversation the user's first text is asked.
            None: `BUILT_IN`.

    Raises:
        RequestError: DP470, the file cannot be read, a line is no such object, or there is none.
    """
    if path is None:
        return list(BUILT_IN)
    prompts = [BenchPrompt(line.group or "prompts", line.text) for line in read_prompt_file(path, "DP470")]
    if not prompts:
        raise RequestError("DP470", f"{path}: expected a prompt a line, got an empty file")
    return prompts


def workloads(
    prompts: Sequence[BenchPrompt], wanted: Sequence[str] = (MIXED,)
) -> dict[str, list[BenchPrompt]]:
    """Prompts by workload.

    Args:
        prompts: of any groups.
        wanted: names of groups; ``"mixed"`` is all of them in turn; ``"all"`` is each, and mixed.

    Raises:
        RequestError: DP471, a group that is not there.
    """
    there: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        there.setdefault(prompt.group, []).append(prompt)
    in_turn = [prompt for row in zip_longest(*there.values()) for prompt in row if prompt is not None]
    there.setdefault(MIXED, in_turn)
    names = [name for asked in wanted for name in (there if asked == EVERY_GROUP else [asked])]
    for name in names:
        if name not in there:
            raise RequestError("DP471", f"no group {name!r} among the prompts; there are {', '.join(there)}")
    return {name: there[name] for name in names}


def digest(prompts: Sequence[BenchPrompt]) -> str:
    """Sixteen hexadecimal digits that tell one set of prompts from another."""
    said = json.dumps([[prompt.group, prompt.text] for prompt in prompts])
    return hashlib.sha256(said.encode()).hexdigest()[:16]
