"""A drafter's confidences of a step, in the two forms that are computed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FlatConfidence:
    """One draft's after the other: how many each sequence has, int64 ``[n]``, and all of them, float64 ``[k]``."""

    sizes: np.ndarray
    values: np.ndarray

    @staticmethod
    def of(confidences: Sequence[Sequence[float] | None], most: int) -> FlatConfidence:
        """At most `most` of each draft; a draft without counts as one of none."""
        sizes: list[int] = []
        values: list[float] = []
        for own in confidences:
            sizes.append(min(most, len(own)) if own is not None else 0)
            if own is not None:
                values += own[:most]
        return FlatConfidence(np.array(sizes, np.int64), np.array(values, np.float64))


def table_of(confidences: Sequence[Sequence[float] | None], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences ``[n, most]`` and where there are any."""
    table = np.zeros((len(confidences), most))
    known = np.zeros(table.shape, dtype=bool)
    for row, values in enumerate(confidences):
        if values is not None and (size := len(values)):
            table[row, :size] = values
            known[row, :size] = True
    return table, known
