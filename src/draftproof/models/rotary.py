"""Rotary tables read by position, so that a row's cos and sin never depend on which rows are computed with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

STATIC_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn", "proportional"})
"""Rope types whose angles depend on the position alone. `dynamic` and `longrope` change with the longest row of a pass."""
_CHUNK = 1024


class RotaryTable(nn.Module):
    """Stands in for a model's rotary module; computes cos and sin for whole chunks of positions and looks rows up.

    Chunks start at multiples of 1,024 and are always computed whole, by the module it replaces, so a position's entry comes
    from one computation of one shape whatever is asked for first.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._tables: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``(cos, sin)``, each ``[1, rows, dim]`` in `x`'s dtype, for `position_ids` ``[1, rows]``."""
        key = (layer_type, x.dtype, x.device)
        highest = int(position_ids.max())
        if key not in self._tables or self._tables[key][0].shape[0] <= highest:
            self._tables[key] = self._extended(x, highest, layer_type)
        cos, sin = self._tables[key]
        rows = position_ids[0]
        return cos[rows][None], sin[rows][None]

    def _extended(
        self, x: torch.Tensor, highest: int, layer_type: str | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        more = () if layer_type is None else (layer_type,)
        chunks = []
        for start in range(0, highest + 1, _CHUNK):
            positions = torch.arange(start, start + _CHUNK, device=x.device)[None]
            cos, sin = self.inner(x[:, :1], positions, *more)
            chunks.append((cos[0], sin[0]))
        return torch.cat([cos for cos, _ in chunks]), torch.cat([sin for _, sin in chunks])
