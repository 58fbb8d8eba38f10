"""Attention of a block's slots over the sequence's context and the block itself.

One sequence at a time: rows of different sequences never share a mask or a set of keys, so that they cannot
see each other by mistake.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from draftproof.models.drafters.config import LayerAttention


def first_visible(length: int, window: int | None) -> int:
    """Index of the first context token that any slot may see, `length` context tokens before the anchor."""
    return 0 if window is None else max(0, length - window + 1)


def visibility(rows: int, num_keys: int, layer: LayerAttention, device: torch.device) -> torch.Tensor | None:
    """Which keys each slot sees, bool ``[rows, num_keys]``; None when every slot sees every key.

    The keys are consecutive positions that end with the block's own `rows` slots. A slot at q sees a key at k
    iff ``q - k < window``, and ``k <= q`` where the layer is causal, else ``k - q < window``.
    """
    # The first slot is the furthest from the last key, the last slot from the first key.
    narrow = layer.window is not None and layer.window < num_keys
    if not narrow and not layer.causal:
        return None
    slots = torch.arange(num_keys - rows, num_keys, device=device)[:, None]
    ahead = torch.arange(num_keys, device=device)[None, :] - slots
    seen = ahead <= 0 if layer.causal else torch.ones_like(ahead, dtype=torch.bool)
    if layer.window is not None:
        seen &= (-ahead < layer.window) & (ahead < layer.window)
    return seen


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Grouped-query attention with scale ``head_dim ** -0.5``.

    Args:
        queries: ``[rows, heads, head_dim]``; query head h reads key head ``h // (heads / kv_heads)``.
        keys, values: ``[kv_heads, num_keys, head_dim]``.
        seen: bool ``[rows, num_keys]``, or None for all.
        sinks: ``[heads]``: a logit per head that takes part in the softmax and carries no value.

    Returns:
        ``[rows, heads * head_dim]``.
    """
    rows, heads, dim = queries.shape
    groups = heads // keys.shape[0]
    # The query heads that share a key head become further rows of one product: no key is copied or expanded.
    folded = queries.view(rows, -1, groups, dim).permute(1, 2, 0, 3).reshape(1, -1, groups * rows, dim)
    mask = None if seen is None else seen.repeat(groups, 1)
    if sinks is None:
        out = functional.scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=mask)
    else:
        out = _with_sinks(
            folded, keys[None], values[None], mask, sinks.view(-1, groups).repeat_interleave(rows, 1)
        )
    return out.view(-1, groups, rows, dim).permute(2, 0, 1, 3).reshape(rows, heads * dim)


def _with_sinks(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor,
) -> torch.Tensor:
    scores = (queries @ keys.mT).float() * queries.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.cat((scores, sinks[None, :, :, None].float()), -1).softmax(-1)[..., :-1]
    return weights.to(values.dtype) @ values
