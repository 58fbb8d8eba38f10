"""DFlash 2's grouped dynamic causal convolution, around each sublayer of the drafter (design section 4)."""

from __future__ import annotations

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

    def apply(self, x: torch.Tensor, dynamic: torch.Tensor, stage: int, shifts: torch.Tensor) -> torch.Tensor:
        """``y[t] = sum_o (base[o] + dynamic[t, o, group]) * x[t - o]``, with zeros before each block's first row.

        Args:
            x: ``[rows, hidden]``; neighbouring channels form a group.
            dynamic: from `dynamic`.
            stage: 0 or 1.
            shifts: from `predecessors`.
        """
        rows, hidden = x.shape
        size, groups = dynamic.shape[2:]
        kernel = self.base[stage].view(size, groups, -1) + dynamic[:, stage, :, :, None]
        shifted = functional.pad(x, (0, 0, 1, 0))[shifts]
        return (kernel * shifted.view(rows, size, groups, -1)).sum(1).view(rows, hidden)


def predecessors(slots: torch.Tensor, size: int) -> torch.Tensor:
    """Where rows find themselves and their ``size - 1`` predecessors within their block, int64 ``[rows, size]``.

    Indices into the rows of the pass with a row of zeros before them, which stands for what lies before a block's start.
    ``slots [rows]`` are the rows' slots.
    """
    offsets = torch.arange(size, device=slots.device)
    rows = torch.arange(slots.shape[0], device=slots.device)[:, None] - offsets
    return torch.where(slots[:, None] >= offsets, rows + 1, 0)
