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
        self._tables: dict[tuple[Any, ...], tuple[torch.Tensor, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        """What a model reads off its rotary module (its config, say) is the inner module's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None) -> Any:
        """What the inner module gives for `position_ids` ``[1, rows]``: ``(cos, sin)``, or one tensor of both, each
        ``[1, rows, dim]``."""
        key = (layer_type, x.dtype, x.device)
        highest = int(position_ids.max())
        if key not in self._tables or self._tables[key][0].shape[0] <= highest:
            self._tables[key] = self._extended(x, highest, layer_type)
        rows = [table[position_ids[0]][None] for table in self._tables[key]]
        return tuple(rows) if len(rows) > 1 else rows[0]

    def _extended(self, x: torch.Tensor, highest: int, layer_type: str | None) -> tuple[torch.Tensor, ...]:
        more = () if layer_type is None else (layer_type,)
        chunks = []
        for start in range(0, highest + 1, _CHUNK):
            positions = torch.arange(start, start + _CHUNK, device=x.device)[None]
            out = self.inner(x[:, :1], positions, *more)
            chunks.append(out if isinstance(out, tuple) else (out,))
        return tuple(torch.cat([part[0] for part in parts]) for parts in zip(*chunks, strict=True))
