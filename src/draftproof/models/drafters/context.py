"""The drafter's context: from the target's tapped hidden states to cached keys and values.

What is computed here depends on one token's feature and its position only, so an entry is final as soon as
its token commits, whatever happens to its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from draftproof.models.drafters.config import DrafterConfig
from draftproof.models.drafters.dense import Linear
from draftproof.models.drafters.layer import Tensors, merged
from draftproof.models.drafters.rope import rotate


@dataclass
class DFlashState:
    """One sequence's context.

    Attributes:
        cache: ``[layers, 2, kv_heads, capacity, head_dim]``, keys at index 0 and values at 1 of the second
            axis.
        length: committed tokens taken in; entries from there on hold nothing.
    """

    cache: torch.Tensor
    length: int = 0

    def reserve(self, total: int) -> None:
        """Make room for `total` entries; capacity doubles, so that n tokens cost O(n) copies in all."""
        capacity = self.cache.shape[3]
        if total <= capacity:
            return
        while capacity < total:
            capacity *= 2
        grown = self.cache.new_empty((*self.cache.shape[:3], capacity, self.cache.shape[4]))
        grown[:, :, :, : self.length] = self.cache[:, :, :, : self.length]
        self.cache = grown


@dataclass(frozen=True)
class ContextEncoder:
    """Keys and values of all layers from context features, in two products.

    All layers project the same ``hidden_norm(fc(feature))``, so their k and v matrices stand side by side in
    one.
    """

    fc: Linear
    hidden_norm: torch.Tensor
    projection: Linear
    k_norm: torch.Tensor
    shape: tuple[int, int, int]
    eps: float
    value_scale: float

    def encode(
        self, features: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[n, num_taps * hidden]`` to keys and values ``[layers, kv_heads, n, head_dim]``.

        `cos` and `sin` are ``[n, 1, head_dim]``, for the tokens' own positions.
        """
        x = self.fc(features)
        x = functional.rms_norm(x, (x.shape[-1],), self.hidden_norm, self.eps)
        layers, kv_heads, dim = self.shape
        both = self.projection(x).view(x.shape[0], layers, 2, kv_heads, dim)
        keys, values = both[:, :, 0], both[:, :, 1]
        keys = functional.rms_norm(keys, (dim,), None, self.eps) * self.k_norm
        keys = rotate(keys, cos[:, None], sin[:, None])
        if self.value_scale != 1.0:
            values = values * self.value_scale
        return keys.permute(1, 2, 0, 3), values.permute(1, 2, 0, 3)


def build_encoder(config: DrafterConfig, weights: Tensors) -> ContextEncoder:
    """The encoder from the checkpoint's tensors, already in the drafter's dtype."""
    layers = range(config.num_layers)
    names = [f"layers.{i}.self_attn.{part}_proj" for i in layers for part in ("k", "v")]
    return ContextEncoder(
        fc=merged(weights, "fc"),
        hidden_norm=weights["hidden_norm.weight"],
        projection=merged(weights, *names),
        k_norm=torch.stack([weights[f"layers.{i}.self_attn.k_norm.weight"] for i in layers])[:, None],
        shape=(config.num_layers, config.num_kv_heads, config.head_dim),
        eps=config.rms_norm_eps,
        value_scale=config.value_scale,
    )
