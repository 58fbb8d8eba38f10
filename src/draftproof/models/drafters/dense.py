"""The one place where the drafter's matrices become callables."""

from __future__ import annotations

from collections.abc import Callable

import torch

from draftproof.models.linear import Route, RowInvariantLinear, packing_available

Linear = Callable[[torch.Tensor], torch.Tensor]
"""``[rows, in] -> [rows, out]``."""


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """A linear layer over ``weight [out, in]`` and ``bias [out]``; packed where that exists.

    A drafter need not be row-invariant, so the slower invariant route for other devices is not wanted here.
    """
    route = Route.PACKED if packing_available(weight.dtype, weight.device) else Route.STOCK
    return RowInvariantLinear(weight, bias, route)
