"""What the drafts of a step say: how far each was tried and accepted, also where it was cut short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.engine.economics.acceptance import DraftOutcome
from draftproof.engine.economics.calibration import ConfidenceMap, logit
from draftproof.engine.economics.compiled import outcomes_of
from draftproof.engine.economics.confidences import FlatConfidence, table_of


@dataclass(frozen=True)
class Evidence:
    """Of a step's drafts, one a sequence.

    Attributes:
        tried: how far each draft was tried, by position, float64 ``[n, most]``; fractions where only expected.
        accepted: the same of what was accepted.
        told: float64 ``[k, 3]``, a line for each token whose confidence and fate are known: logit of the confidence, logit of
            the estimate by counts, 1 if it was accepted.
    """

    tried: np.ndarray
    accepted: np.ndarray
    told: np.ndarray


def evidence_of(seen: Sequence[DraftOutcome], chances: np.ndarray, confidence: ConfidenceMap) -> Evidence:
    """What is learned from these drafts.

    A draft that was cut off for want of confidence was verified only as far as it looked good. Counting that alone would make
    late positions look better than they are, so the rest counts as far as it was expected to be reached and accepted.

    Args:
        seen: what became of the drafts.
        chances: what was estimated by counts, ``[n, most]``.
        confidence: from a drafter's confidences to chances.
    """
    confidences = FlatConfidence.of([outcome.confidences for outcome in seen], chances.shape[1])
    ends = np.array([(outcome.verified, outcome.accepted) for outcome in seen], np.int64)
    return Evidence(*outcomes_of(ends, confidences.sizes, confidences.values, chances, confidence.weights))


def evidence_reference(
    seen: Sequence[DraftOutcome], chances: np.ndarray, confidence: ConfidenceMap
) -> Evidence:
    """`evidence_of` in plain numpy."""
    table, known = table_of([outcome.confidences for outcome in seen], chances.shape[1])
    ends = np.array([(outcome.verified, outcome.accepted) for outcome in seen])[:, :, None]
    verified, accepted = ends[:, 0], ends[:, 1]
    place = np.arange(chances.shape[1])
    tried = (place < verified) & (place <= accepted)
    kept = place < accepted
    reached, expected = tried.astype(np.float64), kept.astype(np.float64)
    rest = known & (place >= verified) & (accepted == verified)
    chain = np.where(rest, confidence.chances(table, chances), 1.0)
    through = np.cumprod(chain, axis=1)
    reached += np.where(rest, through / chain, 0.0)
    expected += np.where(rest, through, 0.0)
    told = tried & known
    lines = np.stack([logit(table[told]), logit(chances[told]), kept[told]], axis=1)
    return Evidence(reached, expected, lines)
