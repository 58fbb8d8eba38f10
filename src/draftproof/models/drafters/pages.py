"""Memory for the drafter's context keys and values, in pages of `KEY_BLOCK` positions."""

from __future__ import annotations

import math

import numpy as np
import torch

from draftproof.models.kv import KEY_BLOCK


class ContextPages:
    """Keys and values of all layers.

    Args:
        layers, kv_heads, head_dim: the drafter's.
        num_pages: pages; indices into the table of a sequence.
        dtype, device: the drafter's.

    Attributes:
        data: ``[layers, num_pages, KEY_BLOCK, 2, kv_heads, head_dim]``, keys at index 0 and values at 1 of the fourth
            axis. A position's row of a layer is one stretch of memory, and so is a page's: what is written and what is gathered.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.data = _zeros((layers, num_pages, KEY_BLOCK, 2, kv_heads, head_dim), dtype, device)

    @property
    def num_pages(self) -> int:
        return self.data.shape[1]

    def rows(self, layer: int) -> torch.Tensor:
        """One layer's positions as rows ``[num_pages * KEY_BLOCK, 2 * kv_heads * head_dim]``, a view."""
        return self.data[layer].view(self.num_pages * KEY_BLOCK, -1)

    def gather(self, layer: int, page_ids: torch.Tensor) -> torch.Tensor:
        """A copy of pages ``page_ids [n]`` of one layer, as rows ``[n * KEY_BLOCK, 2 * kv_heads * head_dim]``."""
        pages = self.data[layer].view(self.num_pages, -1).index_select(0, page_ids)
        return pages.view(page_ids.shape[0] * KEY_BLOCK, -1)

    def copy(self, source: int, destination: int) -> None:
        """Make page `destination` equal to page `source`, in all layers."""
        self.data[:, destination] = self.data[:, source]

    def grow(self, num_pages: int) -> None:
        """Make room for `num_pages` pages, keeping what is there; for memory that one sequence owns."""
        shape = (self.data.shape[0], num_pages, *self.data.shape[2:])
        grown = _zeros(shape, self.data.dtype, self.data.device)
        grown[:, : self.num_pages] = self.data
        self.data = grown


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that, on a CPU, cost no memory until they are written: numpy leaves that to the operating system."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return (
        torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
    )
