"""No prompt that is kept for measuring may be learnt from: finding those that are, whatever they are dressed in.

Two prompts are the same when they are equal after case, white space and the ways of writing a character are put aside; when
one of them, if it is long, stands inside the other; or when their token ids are equal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.engine.prompt_files import FilePrompt
from draftproof.errors import RequestError
from draftproof.train.responses import Response
from draftproof.train.user_turn import UserTurn

LONG = 48
"""Characters from which a text inside another is no accident."""
_NAMED = 3
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "−": "-"})


def normalised(text: str) -> str:
    """A text without what does not make it another: case, white space, quotes' and dashes' forms, compatibility forms."""
    return " ".join(unicodedata.normalize("NFKC", text).translate(_PLAIN).casefold().split())


@dataclass(frozen=True)
class Leak:
    """A held-out prompt among what is to be trained on.

    Attributes:
        index: of the prompt or response, from 0.
        text: the held-out prompt.
    """

    index: int
    text: str


class HeldOut:
    """Prompts kept for measuring, ready to be looked for.

    Args:
        prompts: all texts of the user's count, later turns too.
        tokenizer: the target's; without it no token ids are compared.
    """

    def __init__(self, prompts: Sequence[FilePrompt], tokenizer: Any = None) -> None:
        self.prompts = tuple(prompts)
        self._tokenizer = tokenizer
        self._turn = UserTurn.of(tokenizer) if tokenizer is not None else None
        texts = [text for prompt in prompts for text in prompt.texts]
        self._originals = {said: text for text in texts if (said := normalised(text))}
        # A long text is looked for by its beginning; what is equal there is compared to its end.
        self._beginnings: dict[str, list[str]] = {}
        for said in self._originals:
            if len(said) >= LONG:
                self._beginnings.setdefault(said[:LONG], []).append(said)
        self._all = "\0".join(self._originals)
        self._ids = self._encoded()

    def _encoded(self) -> dict[tuple[int, ...], str]:
        """Token ids of every prompt, with and without the template, and the prompt."""
        if self._tokenizer is None:
            return {}
        ids = {}
        for original in self._originals.values():
            plain = [original]
            if self._turn is not None:
                plain.append(self._turn.before + original + self._turn.after)
            for text in plain:
                ids[tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])] = original
        return ids

    def find(self, text: str) -> str | None:
        """The held-out prompt that a text is, holds or stands in; None when there is none."""
        said = normalised(text)
        if said in self._originals:
            return self._originals[said]
        if len(said) < LONG:
            return None
        for start in range(len(said) - LONG + 1):
            for whole in self._beginnings.get(said[start : start + LONG], ()):
                if said.startswith(whole, start):
                    return self._originals[whole]
        if said in self._all:
            return next(text for whole, text in self._originals.items() if said in whole)
        return None

    def find_in_prompt(self, prompt: FilePrompt) -> str | None:
        """The same for each text of the user's in a prompt."""
        return next((found for text in prompt.texts if (found := self.find(text)) is not None), None)

    def find_in_ids(self, prompt_ids: Sequence[int]) -> str | None:
        """The same for the token ids of a prompt, as they are and as the text they stand for."""
        found = self._ids.get(tuple(prompt_ids))
        if found is not None or self._tokenizer is None:
            return found
        text = self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)
        return self.find(self._turn.inside(text) if self._turn is not None else text)


def refuse_leaks(prompts: Sequence[FilePrompt], held_out: HeldOut, *, drop: bool = False) -> list[FilePrompt]:
    """The prompts that may be trained on.

    Args:
        prompts: to look through.
        held_out: what must not be among them.
        drop: leave those out that are, instead of refusing all.

    Raises:
        RequestError: DP504, some are held out, and `drop` is false; the message names the first of them.
    """
    found = [(index, held_out.find_in_prompt(prompt)) for index, prompt in enumerate(prompts)]
    leaks = [Leak(index, text) for index, text in found if text is not None]
    return _without(prompts, leaks, "prompt", drop)


def refuse_leaked_responses(
    responses: Sequence[Response], held_out: HeldOut, *, drop: bool = False
) -> list[Response]:
    """The same for answers that exist already, by the token ids of their prompts."""
    found = [(index, held_out.find_in_ids(response.prompt_ids)) for index, response in enumerate(responses)]
    leaks = [Leak(index, text) for index, text in found if text is not None]
    return _without(responses, leaks, "answer", drop)


def _without(items: Sequence[Any], leaks: Sequence[Leak], what: str, drop: bool) -> list[Any]:
    if leaks and not drop:
        named = "; ".join(f"{what} {leak.index + 1}: {_short(leak.text)!r}" for leak in leaks[:_NAMED])
        more = f" and {len(leaks) - _NAMED} more" if len(leaks) > _NAMED else ""
        raise RequestError(
            "DP504", f"{len(leaks)} of the training {what}s are held out for measuring: {named}{more}"
        )
    leaked = {leak.index for leak in leaks}
    return [item for index, item in enumerate(items) if index not in leaked]


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."
