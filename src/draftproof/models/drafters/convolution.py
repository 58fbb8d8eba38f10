"""DFlash 2's grouped dynamic causal convolution, around each sublayer of the drafter (design section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from draftproof.models.drafters.dense import Linear


@dataclass(frozen=True)
class DynamicConv:
    """Weights of one convolution.

    Attributes:
        base: ``[2, K, hidden]``; stage 0 is for the sublayer's input, stage 1 for its output.
        projection: ``[rows, hidden] -> [rows, 2 * K * groups]``.
    """

    base: torch.Tensor
    projection: Linear

    def dynamic(self, normed: torch.Tensor) -> torch.Tensor:
        """The position-dependent part of both stages' kernels, ``[rows, 2, K, groups]``."""
        return self.projection(normed).view(normed.shape[0], 2, self.base.shape[1], -1)

    def apply(
        self, x: torch.Tensor, dynamic: torch.Tensor, stage: int, blocks: Sequence[slice]
    ) -> torch.Tensor:
        """Convolve each block of rows on its own, ``[rows, hidden] -> [rows, hidden]``."""
        parts = [_convolve(x[rows], self.base[stage], dynamic[rows, stage]) for rows in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _convolve(x: torch.Tensor, base: torch.Tensor, dynamic: torch.Tensor) -> torch.Tensor:
    """``y[t] = sum_o (base[o] + dynamic[t, o, group]) * x[t - o]``, with zeros before the block's first row.

    Args:
        x: ``[rows, hidden]``.
        base: ``[K, hidden]``.
        dynamic: ``[rows, K, groups]``; neighbouring channels form a group.
    """
    rows, hidden = x.shape
    size, groups = dynamic.shape[1:]
    kernel = base.view(size, groups, -1) + dynamic[..., None]
    padded = functional.pad(x, (0, 0, size - 1, 0))
    shifted = torch.stack([padded[size - 1 - offset : size - 1 - offset + rows] for offset in range(size)], 1)
    return (kernel * shifted.view(rows, size, groups, -1)).sum(1).view(rows, hidden)
