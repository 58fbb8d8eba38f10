"""A predicted output as a draft: while the output goes along with the prediction, what follows there is proposed.

Like every draft it is verified; a wrong prediction costs time and changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LONGEST = 15
"""Most tokens proposed at once: with the anchor 16 rows of a pass."""
SHORTEST = 2
"""Tokens proposed where the last proposal was refused from its first token on."""
FIND_BY = 3
"""Tokens that must agree for the output to be found again in the prediction; more after it was found in a wrong place."""
MOST_FIND_BY = 8


class PredictedText:
    """The prediction of a request and where its runs of tokens lie. Shared by the request's choices; never changes.

    Args:
        tokens: the predicted output.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self._ends: dict[tuple[int, ...], list[int]] | None = None

    def find(self, last: Sequence[int], after: int) -> int | None:
        """The place behind a run of tokens equal to `last` (at least `FIND_BY`): the first one past `after`, else the first.

        Args:
            last: the output's last tokens.
            after: the place from which the output left the prediction.
        """
        if self._ends is None:  # most predictions are followed to their end
            self._ends = {}
            for end in range(FIND_BY, len(self.tokens)):
                self._ends.setdefault(tuple(self.tokens[end - FIND_BY : end]), []).append(end)
        ends = self._ends.get(tuple(last[-FIND_BY:]), [])
        first = bisect_left(ends, after)
        for end in (*ends[first:], *ends[:first]):
            if self.tokens[max(0, end - len(last)) : end] == list(last):
                return end
        return None


class PredictionReader:
    """Where one output is in its prediction.

    Args:
        text: the prediction.
    """

    def __init__(self, text: PredictedText) -> None:
        self._text = text
        self._place: int | None = 0
        self._left_at = 0
        self._read = 0
        self._length = LONGEST
        self._find_by = FIND_BY

    def propose(self, tokens: Sequence[int], prompt_length: int, most: int) -> list[int]:
        """Tokens that the prediction has next, at most `most`; none where the output is not found in it.

        Args:
            tokens: prompt and output so far. From one call to the next it only grows.
            prompt_length: tokens of the prompt.
            most: what is of use.
        """
        predicted = self._text.tokens
        for token in tokens[prompt_length + self._read :]:
            self._follow(token)
            self._read += 1
        if self._place is None and self._read >= self._find_by:
            self._place = self._text.find(tokens[len(tokens) - self._find_by :], self._left_at)
        if self._place is None:
            return []
        return predicted[self._place : self._place + min(most, self._length)]

    def _follow(self, token: int) -> None:
        place = self._place
        if place is None:
            return
        if place < len(self._text.tokens) and self._text.tokens[place] == token:
            self._place = place + 1
        else:
            self._place, self._left_at = None, place

    def note(self, proposed: int, accepted: int) -> None:
        """What became of a proposal: shorter ones after a refusal, longer ones as they come true."""
        if accepted == 0:
            self._length = SHORTEST
            self._find_by = min(MOST_FIND_BY, self._find_by + 1)
        elif accepted >= proposed:
            self._length, self._find_by = min(LONGEST, 2 * self._length), FIND_BY
