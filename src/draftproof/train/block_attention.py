"""Attention of blocks over their sequences' contexts and themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftproof.models.drafters.attention import visible
from draftproof.models.drafters.config import LayerAttention

_TOGETHER = 16
"""Blocks of a sequence that are attended for at once: the earlier ones need fewer keys than the last."""


@dataclass(frozen=True)
class BlockRows:
    """Which rows belong together.

    Attributes:
        row_counts: context rows by sequence.
        anchor_counts: blocks by sequence.
        anchor_positions: int64 ``[A]``, ascending within a sequence.
        places: the same as numbers.
        block_size: slots of a block.
    """

    row_counts: tuple[int, ...]
    anchor_counts: tuple[int, ...]
    anchor_positions: torch.Tensor
    places: tuple[int, ...]
    block_size: int


def block_attention(
    queries: torch.Tensor,
    own_keys: torch.Tensor,
    own_values: torch.Tensor,
    context_keys: torch.Tensor,
    context_values: torch.Tensor,
    rows: BlockRows,
    kind: LayerAttention,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Grouped-query attention with scale ``head_dim ** -0.5``: a slot sees the context before its anchor and its own block.

    Args:
        queries: ``[A * B, heads, head_dim]``; query head h reads key head ``h // (heads / kv_heads)``.
        own_keys, own_values: ``[A * B, kv_heads, head_dim]``, of the blocks' slots.
        context_keys, context_values: ``[T, kv_heads, head_dim]``.
        rows: which of them belong together.
        kind: window and causality.
        sinks: ``[heads]``, a logit a head that takes part in the softmax and carries no value; or None.

    Returns:
        ``[A * B, heads * head_dim]``.
    """
    size = rows.block_size
    outputs = []
    row = anchor = 0
    for row_count, anchor_count in zip(rows.row_counts, rows.anchor_counts, strict=True):
        for first in range(anchor, anchor + anchor_count, _TOGETHER):
            blocks = slice(first, min(first + _TOGETHER, anchor + anchor_count))
            slots = slice(first * size, blocks.stop * size)
            keys = slice(row, row + min(row_count, rows.places[blocks.stop - 1]))
            outputs.append(
                _some_blocks(
                    queries[slots],
                    own_keys[slots],
                    own_values[slots],
                    context_keys[keys],
                    context_values[keys],
                    rows.anchor_positions[blocks],
                    kind,
                    sinks,
                )
            )
        row, anchor = row + row_count, anchor + anchor_count
    return torch.cat(outputs)


def _some_blocks(
    queries: torch.Tensor,
    own_keys: torch.Tensor,
    own_values: torch.Tensor,
    context_keys: torch.Tensor,
    context_values: torch.Tensor,
    anchors: torch.Tensor,
    kind: LayerAttention,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    count, (heads, dim), kv_heads = anchors.shape[0], queries.shape[1:], own_keys.shape[1]
    size, groups = queries.shape[0] // count, heads // kv_heads
    # Query heads that share a key head become further rows: [kv_heads, anchors, groups * slots, head_dim].
    folded = queries.view(count, size, kv_heads, groups, dim).permute(2, 0, 3, 1, 4)
    folded = folded.reshape(kv_heads, count, groups * size, dim)
    before = folded.reshape(kv_heads, -1, dim) @ context_keys.permute(1, 2, 0)
    own = folded @ own_keys.view(count, size, kv_heads, dim).permute(2, 0, 3, 1)
    scores = _wide(torch.cat((before.view(kv_heads, count, groups * size, -1), own), -1)) * dim**-0.5
    scores = scores.masked_fill(~seen_keys(anchors, context_keys.shape[0], size, groups, kind), -torch.inf)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        extra = sinks.to(scores.dtype).view(kv_heads, 1, groups, 1, 1).expand(-1, count, -1, size, 1)
        weights = torch.cat((scores, extra.reshape(kv_heads, count, groups * size, 1)), -1).softmax(-1)[
            ..., :-1
        ]
    weights = weights.to(own_values.dtype)
    split = context_keys.shape[0]
    out = weights[..., split:] @ own_values.view(count, size, kv_heads, dim).permute(2, 0, 1, 3)
    far = weights[..., :split].reshape(kv_heads, -1, split) @ context_values.transpose(0, 1)
    out = (out + far.view_as(out)).view(kv_heads, count, groups, size, dim)
    return out.permute(1, 3, 0, 2, 4).reshape(count * size, heads * dim)


def seen_keys(
    anchors: torch.Tensor, context: int, size: int, groups: int, kind: LayerAttention
) -> torch.Tensor:
    """Which keys the slots see, bool ``[anchors, groups * size, context + size]``: context at its positions, then the block."""
    offsets = torch.arange(size, device=anchors.device)
    slots = anchors[:, None, None] + offsets[:, None]
    positions = torch.arange(context, device=anchors.device)
    before = visible(slots, positions, kind) & (positions < anchors[:, None, None])
    within = visible(slots, anchors[:, None, None] + offsets, kind)
    return torch.cat((before, within), -1).repeat(1, groups, 1)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
