"""The drafter's context: from the target's tapped hidden states to cached keys and values.

What is computed here depends on one token's feature and its position only, so an entry is final as soon as
its token commits, whatever happens to its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from draftproof.models.drafters.config import DrafterConfig
from draftproof.models.drafters.dense import Linear
from draftproof.models.drafters.layer import Tensors, merged
from draftproof.models.drafters.pages import ContextPages
from draftproof.models.drafters.rope import rotate
from draftproof.models.kv import KEY_BLOCK


@dataclass
class DFlashState:
    """One sequence's context: a view of pages.

    Attributes:
        pages: where the keys and values lie.
        table: position p lies in page ``table[p // KEY_BLOCK]``. Someone else's, and only read, unless `private`.
        length: committed tokens taken in; what the pages hold from there on is not this sequence's.
        private: the pages belong to this state alone, and grow.
    """

    pages: ContextPages
    table: list[int]
    length: int = 0
    private: bool = False

    def reserve(self, total: int) -> None:
        """Make sure that `total` positions have pages; private memory doubles, so that n tokens cost O(n) copies in all.

        Raises:
            RuntimeError: the table, which is not ours to change, is too short.
        """
        needed = -(-total // KEY_BLOCK)
        if needed <= len(self.table):
            return
        if not self.private:
            raise RuntimeError(f"{total} positions need {needed} pages, but the table has {len(self.table)}")
        if needed > self.pages.num_pages:
            self.pages.grow(max(needed, 2 * self.pages.num_pages))
        self.table.extend(range(len(self.table), self.pages.num_pages))

    def places(self, start: int, count: int) -> list[int]:
        """Rows of `ContextPages.rows` that hold `count` positions from `start`."""
        table = self.table
        return [table[p // KEY_BLOCK] * KEY_BLOCK + p % KEY_BLOCK for p in range(start, start + count)]


def store(
    states: Sequence[DFlashState], starts: Sequence[int], counts: Sequence[int], entries: torch.Tensor
) -> None:
    """Write ``entries [layers, n, 2 * kv_heads * head_dim]`` of several sequences: `counts` positions from `starts` of each.

    One scatter a layer for all sequences that share their pages.
    """
    shared: dict[int, tuple[ContextPages, list[int], list[torch.Tensor]]] = {}
    first = 0
    for state, start, count in zip(states, starts, counts, strict=True):
        _, places, rows = shared.setdefault(id(state.pages), (state.pages, [], []))
        places.extend(state.places(start, count))
        rows.append(entries[:, first : first + count])
        first += count
    for pages, places, rows in shared.values():
        index = torch.tensor(places, dtype=torch.int64, device=entries.device)
        for layer, new in enumerate(entries if len(shared) == 1 else torch.cat(rows, 1)):
            pages.rows(layer).index_copy_(0, index, new)


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

    def encode(self, features: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``[n, num_taps * hidden]`` to keys and values ``[layers, n, 2 * kv_heads * head_dim]``, keys first.

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
        return torch.stack((keys, values), 2).view(x.shape[0], layers, -1).transpose(0, 1)


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
