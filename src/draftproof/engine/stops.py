"""Where an output ends: end tokens, the length limit, and stop strings.

All of it is decided token by token, in the order of the output, so it can't depend on how many tokens a step
committed at once: what a block holds past the end is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

FinishReason = Literal["stop", "length"]
"""``"stop"``: an end token or a stop string; ``"length"``: max_tokens or the context is used up."""


def end_token_set(
    eos_token_ids: Collection[int], stop_token_ids: Collection[int], ignore_eos: bool
) -> frozenset[int]:
    """The tokens that end an output: the model's own, unless ignored, and the request's."""
    return frozenset(stop_token_ids) | (frozenset() if ignore_eos else frozenset(eos_token_ids))


def finish_reason(
    token_id: int, output_index: int, *, end_tokens: Collection[int], max_tokens: int
) -> FinishReason | None:
    """Why the output ends with this token, or None when it goes on.

    Args:
        token_id: a committed token; the output includes it whatever the answer.
        output_index: its place in the output, 0 = first generated token.
        end_tokens: see `end_token_set`.
        max_tokens: most tokens in the output: the smaller of the request's limit and what the context leaves.

    An end token in the last place counts as ``"stop"``.
    """
    if token_id in end_tokens:
        return "stop"
    return "length" if output_index + 1 >= max_tokens else None


class StopMatcher:
    """Finds stop strings in text that arrives in pieces, and holds back what may turn out to begin one.

    The text stops at the first character that completes a stop string; where it completes several, at the one
    that began first (the longest). That is a property of the text alone, however it was cut into pieces. The
    text shown ends before that stop string, or with it when `include_stop_str_in_output`; in that case
    nothing is ever held back.

    Args:
        stop: stop strings, none empty; none at all lets everything through.
        include_stop_str_in_output: whether the text shown keeps the stop string.

    Attributes:
        stop_string: the stop string that was found, or None so far.
    """

    def __init__(self, stop: Sequence[str] = (), include_stop_str_in_output: bool = False) -> None:
        self._stop = tuple(stop)
        self._include = include_stop_str_in_output
        self._longest_prefix = max(map(len, self._stop), default=1) - 1
        self._tail = ""  # the longest end of the text so far that begins a stop string
        self.stop_string: str | None = None

    def push(self, text: str) -> str:
        """Take in the next piece of text; return what may be shown now. After a stop, nothing more is."""
        if not self._stop:
            return text
        if self.stop_string is not None or not text:
            return ""
        held = 0 if self._include else len(self._tail)
        seen = len(self._tail) - held  # how much of the tail was shown already
        text = self._tail + text
        found = self._first_completed(text)
        if found is not None:
            end, start = found
            self.stop_string = text[start:end]
            self._tail = ""
            return text[seen : end if self._include else start]
        self._tail = text[len(text) - self._pending_length(text) :]
        return text[seen : len(text) if self._include else len(text) - len(self._tail)]

    def flush(self) -> str:
        """The text ends without a stop string: what was held back."""
        held = "" if self._include else self._tail
        self._tail = ""
        return held

    def _first_completed(self, text: str) -> tuple[int, int] | None:
        # For each stop string the first occurrence is also the first to be completed.
        starts = ((text.find(stop), stop) for stop in self._stop)
        return min(((start + len(stop), start) for start, stop in starts if start >= 0), default=None)

    def _pending_length(self, text: str) -> int:
        for length in range(min(self._longest_prefix, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
