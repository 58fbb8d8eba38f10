"""Cos and sin by position, in float32, from a model's own rotary module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from draftproof.models.rotary import RotaryTable


class PlainAngles(nn.Module):
    """The rotary module of models without scaling: pair i of a head turns by ``position / theta ** (2 i / head_dim)``
    (RoFormer, section 3.2.2), computed as Transformers does.

    Transformers' own would bring its modelling code with it, two seconds and 100 MB.
    """

    def __init__(self, theta: float, head_dim: int) -> None:
        super().__init__()
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
        self.inv_freq = 1.0 / (theta**exponents)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and sin ``[1, n, head_dim]`` at ``positions [1, n]``."""
        del x
        angles = positions[0, :, None].float() * self.inv_freq
        both = torch.cat((angles, angles), -1)[None]
        return both.cos(), both.sin()


class RopeTable:
    """cos and sin of positions 0, 1, ...: float32 ``[positions, 2, head_dim / 2]``, cos first.

    Args:
        module: a rotary module (Transformers', or `PlainAngles`) whose angles depend on the position alone.
        layer_type: which of its tables, where it has several.
    """

    def __init__(self, module: nn.Module, layer_type: str | None = None) -> None:
        self._module = RotaryTable(module)
        self._layer_type = layer_type
        self._table = torch.empty(0, dtype=torch.float32)

    def up_to(self, positions: int) -> torch.Tensor:
        """The table, at least `positions` long; it grows by doubling, and its entries never change."""
        if self._table.shape[0] < positions:
            self._table = self._computed(max(positions, 2 * self._table.shape[0]))
        return self._table

    @property
    def half(self) -> int:
        """Angles of a position."""
        return int(self.up_to(1).shape[-1])

    @torch.inference_mode()
    def _computed(self, positions: int) -> torch.Tensor:
        like = torch.zeros(1, 1, 1, dtype=torch.float32)
        last = torch.tensor([[positions - 1]])
        self._module(like, last, *self._more())
        # Once the module has its table, any of its rows cost a lookup.
        cos, sin = self._module(like, torch.arange(positions)[None], *self._more())
        half = cos.shape[-1] // 2
        # Each angle is there twice: once for either half of a head.
        return torch.stack([cos[0, :, :half], sin[0, :, :half]], dim=1).contiguous()

    def _more(self) -> tuple[Any, ...]:
        return () if self._layer_type is None else (self._layer_type,)
