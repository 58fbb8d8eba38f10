"""Memory for the features of small passes, one after the other in one piece.

A row that decodes leaves features of a few kilobytes at each step. Pieces of memory of their own would have to be gathered, one
by one, when the drafter takes them in; rows side by side are taken in as they lie.
"""

from __future__ import annotations

import torch

SHELF_ROWS = 512
"""Rows of a piece. It lives for as long as anybody holds one of them."""
MOST_ROWS = 64
"""Larger passes get memory of their own: whoever keeps a few of their rows should not keep many others alive."""


class FeatureShelf:
    """Gives out rows. Not for several threads at once."""

    def __init__(self) -> None:
        self._home = torch.empty(0, 0)
        self._next = 0

    def take(self, rows: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """Room for `rows` rows, contents undefined: the tensor ``[n, width]`` they lie in, and the first of them."""
        if rows > MOST_ROWS:
            return torch.empty(rows, width, dtype=dtype), 0
        home, first = self._home, self._next
        if first + rows > home.shape[0] or home.shape[1] != width or home.dtype != dtype:
            self._home = home = torch.empty(SHELF_ROWS, width, dtype=dtype)
            first = 0
        self._next = first + rows
        return home, first
