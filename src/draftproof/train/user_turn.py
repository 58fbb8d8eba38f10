"""Where a chat template puts the user's text: what comes before it, and what after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MARK = "@@the-user-says-this@@"


@dataclass(frozen=True)
class UserTurn:
    """A chat template around one text of a user's.

    Attributes:
        before: the text in front of it, special tokens written out.
        after: what ends the user's turn and opens the answer.
    """

    before: str
    after: str

    @classmethod
    def of(cls, tokenizer: Any) -> UserTurn | None:
        """Of a Transformers tokenizer; None where it has no chat template, or one that changes the text it is given."""
        if not getattr(tokenizer, "chat_template", None):
            return None
        try:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": _MARK}], tokenize=False, add_generation_prompt=True
            )
        except Exception:  # a template raises what it likes
            return None
        before, mark, after = text.partition(_MARK)
        return cls(before, after) if mark else None

    def opening(self, tokenizer: Any) -> list[int]:
        """Token ids up to where the user's text begins."""
        return list(tokenizer(self.before, add_special_tokens=False)["input_ids"])

    def closing(self, tokenizer: Any) -> tuple[tuple[int, ...], str | None]:
        """What ends a user's text: stop tokens, or else a stop string."""
        ids = list(tokenizer(self.after, add_special_tokens=False)["input_ids"])
        if ids and ids[0] in set(tokenizer.all_special_ids):
            return (ids[0],), None
        return (), self.after.strip().split("\n")[0] or None

    def inside(self, text: str) -> str:
        """The user's text of a whole prompt; the prompt itself where it is not this template's."""
        if text.startswith(self.before) and text.endswith(self.after):
            return text[len(self.before) : len(text) - len(self.after)]
        return text
