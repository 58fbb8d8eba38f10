"""Elementwise functions whose result at an element depends on that element alone, bit for bit.

PyTorch computes most elements of a tensor with vector instructions and the last few, which do not fill a vector, one by
one with the C library, whose last bit may differ; and it splits large tensors between threads, each with such a tail.
So an element's bits depend on where in the tensor it stands. Here every call gets a whole number of vectors, few enough to
stay on one thread.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

LANES = 64
"""Elements in the longest run that a vector loop takes at once (two AVX-512 vectors of bfloat16)."""
GRAIN = 32768
"""PyTorch's grain size: an elementwise call on fewer elements than this stays on one thread."""
_PIECE = GRAIN - LANES


def elementwise(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`function` applied to every element of `x` (any shape; float dtype), position-independent on the CPU.

    Args:
        function: elementwise, shape-preserving, e.g. `torch.exp`.
        x: any shape.

    Returns:
        A new tensor shaped like `x`.
    """
    if x.device.type != "cpu":
        return function(x)
    count = x.numel()
    flat = x.reshape(-1)
    if count % LANES:
        flat = functional.pad(flat, (0, -count % LANES))
    if flat.numel() <= _PIECE:
        return function(flat)[:count].view(x.shape)
    return torch.cat([function(piece) for piece in flat.split(_PIECE)])[:count].view(x.shape)


class ElementwiseModule(nn.Module):
    """An activation module of a model, made position-independent."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape in, the same shape out."""
        return elementwise(self.inner, x)
