"""Row-invariant attention in stock PyTorch operators: the plain form, for any device.

Stock attention sums over as many keys as the call happens to bring, split as the kernel likes, so a row's last bits depend
on its neighbours and on padding. Here the order is fixed by absolute positions alone:

* query rows go through in tiles of `TILE` rows, keys in blocks of `KEY_BLOCK` positions from 0: every product has one shape;
* a masked lane weighs exactly 0, so what lies there cannot matter (not even where it is no number);
* the maximum is over all visible keys (exact in any order); each block's sum and product stand alone and are added up along
  a binary tree over block numbers, where a missing block is an exact 0, so context behind the row changes nothing.

All of it in float32, whatever the weights' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from draftproof.models.elementwise import elementwise
from draftproof.models.kv import KEY_BLOCK, padded

TILE = 16
"""Query rows (times heads of a group) in one product."""
TILES_TOGETHER = 4
"""Tiles handled by one batched call; more would copy keys for nothing."""


@dataclass(frozen=True)
class AttentionRule:
    """What a layer asks of its attention.

    Attributes:
        scaling: factor on the scores.
        window: a query at q sees keys with ``0 <= q - k < window``; None for all earlier ones.
        softcap: scores become ``softcap * tanh(score / softcap)``; None for none.
        sinks: ``[heads]`` logits that join each head's softmax without a value; None for none.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


@dataclass(frozen=True)
class TilePlan:
    """Some tiles of a segment's query rows and the key blocks they can see."""

    first_tile: int
    tiles: int
    first_block: int
    end_block: int
    hidden: torch.Tensor
    """bool ``[blocks, 1, tiles, TILE, KEY_BLOCK]``: True where a key may not be seen."""


def plan_tiles(
    start: int, count: int, group: int, window: int | None, device: torch.device
) -> list[TilePlan]:
    """How to go through `count` query rows from position `start`, with `group` query heads per key head."""
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
        plans.append(TilePlan(first, some, first_block, end_block, hidden))
    return plans


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    value_dim: int,
    plans: Sequence[TilePlan],
    rule: AttentionRule,
) -> torch.Tensor:
    """Attention of one segment's queries over its sequence's keys and values (its own included).

    Args:
        queries: ``[heads, n, head_dim]``, any float dtype.
        keys: ``[blocks, kv_heads, key_width, KEY_BLOCK]``, the sequence's blocks in order from position 0.
        values: ``[blocks, kv_heads, KEY_BLOCK, value_width]``.
        value_dim: the model's own value width.
        plans: from `plan_tiles`.
        rule: scaling, window, soft cap, sinks.

    Returns:
        float32 ``[n, heads, value_dim]``.
    """
    queries = padded(queries)
    heads, count, head_dim = queries.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    # Row order within a key head: query-major, then head of the group, so that a tile's rows are neighbours in position.
    rows = queries.float().mul(rule.scaling).reshape(kv_heads, group, count, head_dim).transpose(1, 2)
    rows = functional.pad(rows.reshape(kv_heads, count * group, head_dim), (0, 0, 0, -count * group % TILE))
    tiled = rows.view(kv_heads, -1, TILE, head_dim)
    sinks = None if rule.sinks is None else _sink_rows(rule.sinks, kv_heads, group, tiled.shape[1])
    keys, values = keys.float(), values.float()
    parts = [_attend_tiles(tiled, keys, values, plan, rule.softcap, sinks) for plan in plans]
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    out = out.reshape(kv_heads, -1, out.shape[-1])[:, : count * group].reshape(kv_heads, count, group, -1)
    return out[..., :value_dim].transpose(0, 1).reshape(count, heads, -1).contiguous()


def _sink_rows(sinks: torch.Tensor, kv_heads: int, group: int, tiles: int) -> torch.Tensor:
    """The sink logit of every tiled row, ``[kv_heads, tiles, TILE]``."""
    of_row = torch.arange(tiles * TILE, device=sinks.device) % group
    return sinks.float().view(kv_heads, group)[:, of_row].view(kv_heads, tiles, TILE)


def _attend_tiles(
    tiled: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: TilePlan,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """``[kv_heads, tiles, TILE, value_width]`` for the tiles of one plan."""
    chosen = slice(plan.first_tile, plan.first_tile + plan.tiles)
    keys, values = keys[plan.first_block : plan.end_block], values[plan.first_block : plan.end_block]
    scores = _block_products(tiled[:, chosen].expand(keys.shape[0], -1, -1, -1, -1), keys)
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
    sound = values.isfinite()
    mixed = _tree_sum(_block_products(weights, values.where(sound, 0.0)), plan.first_block)
    return (mixed / total[..., None]).masked_fill(_spoilt(sound, plan.hidden), torch.nan)


def _spoilt(sound: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Rows that see a value that is no finite number, ``[kv_heads, tiles, TILE, 1]``.

    A weight of 0 does not keep such a value out of a product; so they are left out of the products, and put in again here.
    """
    spoilt_keys = ~sound.all(-1)[:, :, None, None]
    return (spoilt_keys & ~hidden).any(-1).any(0)[..., None]


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
