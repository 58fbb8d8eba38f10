"""Memory for logits, used again once nobody holds them.

A pass over 16 rows gives 3 MB of logits. Taken from the system anew each time, and given back, such a piece costs some 800 page
faults a pass: up to a tenth of the time of the pass itself.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

MOST_KEPT = 4
"""Pieces kept at once."""
LARGEST_KEPT = 64 << 20
"""Bytes of the largest piece that is kept; more is wanted by long prompts' log-probabilities alone."""


class RecycledRows:
    """Gives out float32 rows. Not for several threads at once.

    Args:
        width: entries of a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._pieces: list[np.ndarray] = []

    def take(self, rows: int) -> torch.Tensor:
        """``[rows, width]``, contents undefined. It is the caller's for as long as the tensor, or a view of it, lives."""
        if rows * self._width * 4 > LARGEST_KEPT or not rows:
            return torch.empty(rows, self._width, dtype=torch.float32)
        for index in range(len(self._pieces)):
            if self._is_free(index) and self._pieces[index].shape[0] >= rows:
                return torch.from_numpy(self._pieces[index][:rows])
        grown = np.empty((1 << (rows - 1).bit_length(), self._width), np.float32)
        self._pieces = [self._pieces[index] for index in range(len(self._pieces)) if not self._is_free(index)]
        if len(self._pieces) < MOST_KEPT:
            self._pieces.append(grown)
        return torch.from_numpy(grown[:rows])

    def _is_free(self, index: int) -> bool:
        """Whether no tensor lives in a piece: each holds the array that it was made from."""
        return sys.getrefcount(self._pieces[index]) <= _HELD_BY_THE_LIST


def _count() -> int:
    pieces = [np.empty(0)]
    return sys.getrefcount(pieces[0])


_HELD_BY_THE_LIST = _count()
"""What `sys.getrefcount` says of an array that a list alone holds; it is not the same in every Python."""
