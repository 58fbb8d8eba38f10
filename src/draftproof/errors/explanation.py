"""What `draftproof explain CODE` shows for one error."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """The long form of one user-visible error.

    Attributes:
        code: stable identifier, e.g. ``"DP105"``; never reused for something else.
        name: the same in words, kebab case, e.g. ``"logit-row-count-mismatch"``; `explain` takes either.
        title: one line, what went wrong.
        meaning: what the error says about the state of the program, in plain words.
        triggers: what usually brings it about, one cause an entry.
        fix: how to get going again.
        before: a small example that raises it.
        after: the same example, mended.
        prevention: how to never see it again.
    """

    code: str
    name: str
    title: str
    meaning: str
    triggers: tuple[str, ...]
    fix: str
    before: str
    after: str
    prevention: str
