"""Slots of the block that were never trained: agreement that goes along and then drops to next to nothing."""

from __future__ import annotations

from math import sqrt

from draftproof.audit.doctor.scoring import Score

_Z = 2.576
"""Two-sided 99% of a normal distribution."""
_SHARE = 0.25


def rates(score: Score) -> list[float | None]:
    """By slot from 1 on, the share of agreement where every slot before agreed; None where that never happened."""
    return [a / r if r else None for a, r in zip(score.agreed, score.reached, strict=True)]


def first_untrained(score: Score) -> int | None:
    """The first slot from which on a drafter agrees with next to nothing; None where there is none or too little to tell.

    Where all slots before agree, the text is easy, and a trained slot agrees about as often as the ones before it did. A slot
    counts as untrained when it surely agrees less than a quarter as often as those before it, taken together: the upper end
    of the 99% interval (Wilson 1927) of its rate lies below. The slots behind it are then hardly ever reached.
    """
    hits = trials = 0
    for index, (agreed, reached) in enumerate(zip(score.agreed, score.reached, strict=True)):
        if trials and _upper(agreed, reached) < _SHARE * hits / trials:
            return index + 1
        hits, trials = hits + agreed, trials + reached
    return None


def _upper(hits: int, trials: int) -> float:
    """Upper end of Wilson's interval for a share; 1.0 without trials."""
    if not trials:
        return 1.0
    share, z2 = hits / trials, _Z * _Z
    middle = share + z2 / (2 * trials)
    spread = _Z * sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    return (middle + spread) / (1 + z2 / trials)
