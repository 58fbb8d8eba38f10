"""Whether one way of putting a pair together accepts clearly more than another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftproof.audit.doctor.scoring import Score

CONFIDENCE = 0.99
"""Of every interval. Some thirty corrections are tried, so one in twenty would be far too many."""
CLEARLY = 1.03
"""A correction is suggested where even the interval's low end is a gain of 3%."""
_DRAWS = 4000


@dataclass(frozen=True)
class Gain:
    """Acceptance length after over before.

    Attributes:
        ratio: of all texts together.
        low, high: the ends of its interval.
    """

    ratio: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        return self.low >= CLEARLY

    @property
    def loss(self) -> bool:
        """Whether the whole interval lies below 1."""
        return self.high < 1.0


@dataclass(frozen=True)
class Compared:
    """A drafter's score and, for text of another kind, that of a drafter that knows the text alone."""

    score: Score
    yardstick: Score | None = None


def gain(after: Compared, before: Compared) -> Gain:
    """The gain, with a percentile bootstrap over prompts (Efron and Tibshirani 1993, section 13.3).

    Prompts are drawn with replacement, the same on both sides, so what a prompt makes easy or hard for both cancels. Where the
    two sides' texts differ (another template, another precision), a text that repeats itself more is easier for any drafter:
    what the yardstick gained is then divided out of the interval's low end.

    Args:
        after, before: scores of the same prompts in the same order; yardsticks on both or on neither.
    """
    count = len(before.score.tokens)
    drawn = np.random.default_rng(0).integers(0, count, (_DRAWS, count))
    ratios = _lengths(after.score, drawn) / _lengths(before.score, drawn)
    ratio = after.score.acceptance_length / before.score.acceptance_length
    outside = (1.0 - CONFIDENCE) / 2
    low, high = (float(end) for end in np.quantile(ratios, (outside, 1.0 - outside)))
    if after.yardstick is not None and before.yardstick is not None:
        eased = _lengths(after.yardstick, drawn) / _lengths(before.yardstick, drawn)
        low = min(low, float(np.quantile(ratios / eased, outside)))
    return Gain(ratio, low, high)


def _lengths(score: Score, drawn: np.ndarray) -> np.ndarray:
    """Acceptance lengths of drawn prompts, ``[draws]``; 1.0 where none of them took a step."""
    tokens, steps = (np.array(part)[drawn].sum(1) for part in (score.tokens, score.steps))
    return np.where(steps > 0, tokens / np.maximum(steps, 1), 1.0)
