"""Row-invariant attention over cached keys and values, registered with Transformers' attention interface.

Stock attention sums over as many keys as the call happens to bring, split as the kernel likes, so a row's last bits depend
on its neighbours and on padding. Here the order is fixed by absolute positions alone:

* query rows go through in tiles of `TILE` rows, keys in blocks of `KEY_BLOCK` positions from 0: every product has one shape;
* a masked lane weighs exactly 0, so what lies there cannot matter;
* the maximum is over all visible keys (exact in any order); each block's sum and product stand alone and are added up along
  a binary tree over block numbers, where a missing block is an exact 0, so context behind the row changes nothing.

All of it in float32, whatever the weights' dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface

from draftproof.errors import ModelError
from draftproof.models.elementwise import elementwise
from draftproof.models.kv import KEY_BLOCK, LayerKV, padded
from draftproof.models.rows import Segment

NAME = "draftproof_row_invariant"
"""Under which Transformers knows this attention (`attn_implementation`)."""
TILE = 16
"""Query rows (times heads of a group) in one product."""
_WITHOUT_EFFECT = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "cache_position",
        "use_cache",
        "cache",
        "past_key_values",
        "is_causal",
    }
    | {
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "layer_idx",
        "training",
    }
)
"""What models pass to any attention and a causal one over stored keys has no use for."""
TILES_TOGETHER = 4
"""Tiles handled by one batched call; more would copy keys for nothing."""


@dataclass(frozen=True)
class AttentionRule:
    """What a layer asks of its attention.

    Attributes:
        scaling: factor on the scores.
        window: a query at q sees keys with ``0 <= q - k < window``; None for all earlier ones.
        softcap: scores become ``softcap * tanh(score / softcap)``; None for none.
        sinks: ``[heads]`` float32 logits that join each head's softmax without a value; None for none.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


@dataclass(frozen=True)
class _TilePlan:
    """Some tiles of a segment's query rows and the key blocks they can see."""

    first_tile: int
    tiles: int
    first_block: int
    end_block: int
    hidden: torch.Tensor
    """bool ``[blocks, 1, tiles, TILE, KEY_BLOCK]``: True where a key may not be seen."""


@dataclass
class ForwardPass:
    """One pass of the target: its segments, and the masks the layers share."""

    segments: Sequence[Segment]
    windows: dict[int, int | None] = field(default_factory=dict)
    """Window of every layer that has attended in this pass."""
    _plans: dict[tuple[int, int, int | None], list[_TilePlan]] = field(default_factory=dict)

    def enter(self, layer: int, window: int | None) -> None:
        """Note that a layer attends. A layer has one place for keys and values, so it may do so once a pass."""
        if layer in self.windows:
            raise ModelError(
                "DP253", f"layer {layer} attends more than once in a pass, which draftproof does not support"
            )
        self.windows[layer] = window

    def plans(self, index: int, group: int, window: int | None) -> list[_TilePlan]:
        """How to go through segment `index` with `group` query heads per key head under a window."""
        key = (index, group, window)
        if key not in self._plans:
            segment = self.segments[index]
            start, device = segment.kv.length, segment.token_ids.device
            self._plans[key] = _plan_tiles(start, segment.count, group, window, device)
        return self._plans[key]


@dataclass
class AttentionSite:
    """What an attention module finds its pass through: one per target, attached to its modules. None between passes."""

    current: ForwardPass | None = None


def _plan_tiles(
    start: int, count: int, group: int, window: int | None, device: torch.device
) -> list[_TilePlan]:
    tiles = -(-count * group // TILE)
    # A padding row behind the last query stands in for that query: it sees keys, so its softmax is finite, and is dropped.
    queries = start + (torch.arange(tiles * TILE, device=device) // group).clamp(max=count - 1)
    plans = []
    for first in range(0, tiles, TILES_TOGETHER):
        some = min(TILES_TOGETHER, tiles - first)
        rows = queries[first * TILE : (first + some) * TILE].view(some, TILE)
        lowest, highest = start + first * TILE // group, int(rows[-1, -1])
        first_block = 0 if window is None else max(0, lowest - window + 1) // KEY_BLOCK
        end_block = highest // KEY_BLOCK + 1
        keys = torch.arange(first_block * KEY_BLOCK, end_block * KEY_BLOCK, device=device).view(
            -1, 1, 1, 1, KEY_BLOCK
        )
        distance = rows[None, None, :, :, None] - keys
        hidden = distance < 0
        if window is not None:
            hidden |= distance >= window
        plans.append(_TilePlan(first, some, first_block, end_block, hidden))
    return plans


def attend(
    queries: torch.Tensor, store: LayerKV, plans: Sequence[_TilePlan], rule: AttentionRule
) -> torch.Tensor:
    """Attention of one segment's queries over its sequence's stored keys and values (its own included).

    Args:
        queries: ``[heads, n, head_dim]``, any float dtype.
        store: the layer's keys and values, already holding the segment's own.
        plans: from `ForwardPass.plans`.
        rule: scaling, window, soft cap, sinks.

    Returns:
        float32 ``[n, heads, value_dim]``.
    """
    queries = padded(queries)
    heads, count, head_dim = queries.shape
    kv_heads = store.keys.shape[1]
    group = heads // kv_heads
    # Row order within a key head: query-major, then head of the group, so that a tile's rows are neighbours in position.
    rows = queries.float().mul(rule.scaling).view(kv_heads, group, count, head_dim).transpose(1, 2)
    rows = functional.pad(rows.reshape(kv_heads, count * group, head_dim), (0, 0, 0, -count * group % TILE))
    tiled = rows.view(kv_heads, -1, TILE, head_dim)
    sinks = None if rule.sinks is None else _sink_rows(rule.sinks, kv_heads, group, tiled.shape[1])
    parts = [_attend_tiles(tiled, store, plan, rule.softcap, sinks) for plan in plans]
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    out = out.reshape(kv_heads, -1, out.shape[-1])[:, : count * group].reshape(kv_heads, count, group, -1)
    return out[..., : store.value_dim].transpose(0, 1).reshape(count, heads, -1).contiguous()


def _sink_rows(sinks: torch.Tensor, kv_heads: int, group: int, tiles: int) -> torch.Tensor:
    """The sink logit of every tiled row, ``[kv_heads, tiles, TILE]``."""
    of_row = torch.arange(tiles * TILE, device=sinks.device) % group
    return sinks.float().view(kv_heads, group)[:, of_row].view(kv_heads, tiles, TILE)


def _attend_tiles(
    tiled: torch.Tensor, store: LayerKV, plan: _TilePlan, softcap: float | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """``[kv_heads, tiles, TILE, value_dim]`` for the tiles of one plan."""
    chosen = slice(plan.first_tile, plan.first_tile + plan.tiles)
    keys = store.keys[plan.first_block : plan.end_block]
    values = store.values[plan.first_block : plan.end_block]
    scores = _block_products(tiled[:, chosen].expand(keys.shape[0], -1, -1, -1, -1), keys.transpose(-1, -2))
    if softcap is not None:
        scores = elementwise(torch.tanh, scores / softcap) * softcap
    scores = scores.masked_fill(plan.hidden, -torch.inf)
    highest = scores.amax(dim=(0, -1))
    if sinks is not None:
        highest = torch.maximum(highest, sinks[:, chosen])
    weights = elementwise(torch.exp, scores.sub_(highest[None, ..., None]))
    total = _tree_sum(weights.sum(-1), plan.first_block)
    if sinks is not None:
        total = total + elementwise(torch.exp, sinks[:, chosen] - highest)
    mixed = _tree_sum(_block_products(weights, values), plan.first_block)
    return mixed / total[..., None]


def _block_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``[blocks, kv_heads, tiles, TILE, a] x [blocks, kv_heads, a, b] -> [blocks, kv_heads, tiles, TILE, b]``.

    Always as many products of one shape ``[TILE, a] x [a, b]``.
    """
    blocks, kv_heads, tiles = left.shape[:3]
    if tiles == 1:
        product = torch.bmm(left.reshape(-1, TILE, left.shape[-1]), right.reshape(-1, *right.shape[-2:]))
        return product.view(blocks, kv_heads, 1, TILE, -1)
    return torch.matmul(left, right[:, :, None])


def _tree_sum(parts: torch.Tensor, first_block: int) -> torch.Tensor:
    """Sum over dim 0 along the binary tree over absolute block numbers, blocks not given being exact zeros."""
    first = first_block
    while parts.shape[0] > 1:
        lead, trail = first % 2, (first + parts.shape[0]) % 2
        if lead or trail:
            parts = functional.pad(parts, (0, 0) * (parts.dim() - 1) + (lead, trail))
        parts = parts[0::2] + parts[1::2]
        first //= 2
    return parts[0]


def row_invariant_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention signature: `query` ``[1, heads, rows, dim]``, `key` and `value` ``[1, kv_heads, rows, dim]``.

    `others` is what Transformers passes along for other implementations. A model that asks for something there that would
    change the result is refused (at load time, since loading probes the model).
    """
    del dropout
    _refuse_unknown(
        module, others if attention_mask is None else {**others, "a mask of its own": attention_mask}
    )
    site = getattr(module, "draftproof_site", None)
    if site is None or site.current is None:
        raise ModelError(
            "DP256", f"attention of {type(module).__name__} was called outside a pass of draftproof's target"
        )
    layer: Any = module.draftproof_layer
    own_window: Any = module.draftproof_window
    window = sliding_window if sliding_window is not None else own_window
    site.current.enter(layer, window)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    rule = AttentionRule(scale, window, softcap, s_aux)
    query, key, value = query[0], key[0], value[0]
    group = query.shape[0] // key.shape[0]
    parts, at = [], 0
    for index, segment in enumerate(site.current.segments):
        rows = slice(at, at + segment.count)
        at += segment.count
        store = segment.kv.layer(layer, key, value)
        store.write(segment.kv.length, key[:, rows], value[:, rows])
        parts.append(attend(query[:, rows], store, site.current.plans(index, group, window), rule))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.to(query.dtype)[None], None


def _refuse_unknown(module: nn.Module, others: Mapping[str, Any]) -> None:
    unknown = sorted(
        name for name, value in others.items() if name not in _WITHOUT_EFFECT and value is not None
    )
    if unknown:
        raise ModelError(
            "DP253",
            f"attention of {type(module).__name__} asks for {', '.join(unknown)}, which draftproof does not support",
        )


def register() -> None:
    """Make the attention known to Transformers under `NAME`. Harmless when done twice."""
    AttentionInterface.register(NAME, row_invariant_attention)
