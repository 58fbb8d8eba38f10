"""Linear layers whose every output row depends on its own input row alone, bit for bit.

Stock `F.linear` picks another kernel, with another order of summation, for other numbers of rows, so the same row gives
other bits alone than in company. Here a weight is packed once for oneDNN, whose packed product walks a row in one order
for any number of rows from two up; a single row (for which oneDNN has a kernel of its own) gets an empty companion.
Where packing is not to be had, products run in tiles of one fixed number of rows.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.nn import functional

TILE_ROWS = 16
"""Rows of one product in `Route.TILES`: large enough to use the vector units, small enough to waste little on one row."""
TILE_COLUMNS = 16
"""Input widths are brought up to a multiple of this: float32 products of ragged widths sum rows in different orders."""


class Route(Enum):
    """How a linear is computed."""

    PACKED = "packed"
    """oneDNN, weight reordered once; CPU, bfloat16 and float32."""
    TILES = "tiles"
    """One product per `TILE_ROWS` rows, the last tile padded: the same shape always, hence the same order."""
    STOCK = "stock"
    """`F.linear` as it comes: not row-invariant. For what need not be, and as the reference in tests."""


def packing_available(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `Route.PACKED` exists for this dtype on this device."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def best_route(dtype: torch.dtype, device: torch.device) -> Route:
    """The fastest row-invariant route there is for this dtype and device."""
    return Route.PACKED if packing_available(dtype, device) else Route.TILES


class RowInvariantLinear(nn.Module):
    """``y = x @ weight.T + bias`` with row-invariant rows.

    Args:
        weight: ``[out_features, in_features]``, bfloat16 or float32. Kept by reference for tiles; for packing it is copied
            into oneDNN's layout and not kept.
        bias: ``[out_features]`` or None.
        route: how to compute; the best available when None.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, route: Route | None = None
    ) -> None:
        super().__init__()
        self.route = route or best_route(weight.dtype, weight.device)
        self.out_features, self.in_features = weight.shape
        self._bias = None if bias is None else bias.detach()
        self._weight: Any
        if self.route is Route.PACKED:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        else:
            self._weight = weight.detach()

    @property
    def weight(self) -> torch.Tensor:
        """The weight as it is kept; for a packed one only dtype, device and the like can be read off it."""
        weight: torch.Tensor = self._weight
        return weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in_features] -> [..., out_features]`` in the weight's dtype."""
        if self.route is Route.STOCK:
            return functional.linear(x, self._weight, self._bias)
        rows = x.reshape(-1, self.in_features)
        out = (
            self._packed(rows) if self.route is Route.PACKED else tiled_linear(rows, self._weight, self._bias)
        )
        return out.view(*x.shape[:-1], self.out_features)

    def _packed(self, rows: torch.Tensor) -> torch.Tensor:
        alone = rows.shape[0] == 1
        if alone:
            rows = functional.pad(rows, (0, 0, 0, 1))
        out = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return out[:1] if alone else out

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, route={self.route.value}"


def tiled_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear` in products of `TILE_ROWS` rows each, the last one padded; widths that are ragged are padded too.

    Args:
        x: ``[..., in_features]``.
        weight: ``[out_features, in_features]``.
        bias: ``[out_features]`` or None.

    Returns:
        ``[..., out_features]``.
    """
    rows = x.reshape(-1, x.shape[-1])
    count, ragged = rows.shape[0], -rows.shape[1] % TILE_COLUMNS
    if ragged:
        weight = functional.pad(weight, (0, ragged))
    padded = functional.pad(rows, (0, ragged, 0, -count % TILE_ROWS))
    tiles = [functional.linear(tile, weight, bias) for tile in padded.split(TILE_ROWS)]
    out = torch.cat(tiles)[:count] if len(tiles) > 1 else tiles[0][:count]
    return out.view(*x.shape[:-1], weight.shape[0])
