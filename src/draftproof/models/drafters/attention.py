"""Attention of the blocks' slots over their sequences' contexts and the blocks themselves.

Sequences with contexts of about the same size are computed together, in a `Bucket`: the pages of each are gathered side by
side, its own slots' keys and values are put behind them, and all else in the gathered copy is blanked and masked, so that no
sequence sees another and nothing is written into a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from draftproof.models.drafters.config import LayerAttention
from draftproof.models.drafters.pages import ContextPages
from draftproof.models.kv import KEY_BLOCK

_MOST_PAGES = 64
"""Pages of one layer gathered at once: a few megabytes, which stay in a CPU's cache until they are attended to."""


@dataclass(frozen=True)
class Block:
    """One sequence's slots in a pass.

    Attributes:
        rows: where they lie among all rows of the pass.
        pages, table: where the sequence's context lies.
        length: tokens of context, which is also the anchor's position.
    """

    rows: range
    pages: ContextPages
    table: Sequence[int]
    length: int


@dataclass(frozen=True)
class Bucket:
    """What it takes to attend for B blocks of at most R slots together, P gathered pages each.

    Attributes:
        pages: where the contexts lie; the same for all.
        page_ids: ``[B * P]``.
        own_rows: ``[n]``, the blocks' rows in the pass.
        own_places: ``[n]``, where these rows' keys and values go among the gathered ``B * P * KEY_BLOCK``.
        blank: where the gathered copy holds nothing that counts, among the same.
        queries: ``[B * R]``, rows in the pass; a short block repeats its first row.
        answers: ``[n]``, where the rows of `own_rows` are among the queries.
        bias: ``[B, 1, 1 or R, keys]``, zero where a slot sees a key and -inf where not; None when all see all.
        keys: how many of the ``P * KEY_BLOCK`` gathered positions take part.
    """

    pages: ContextPages
    page_ids: torch.Tensor
    own_rows: torch.Tensor
    own_places: torch.Tensor
    blank: torch.Tensor
    queries: torch.Tensor
    answers: torch.Tensor
    bias: torch.Tensor | None
    keys: int

    def gather(self, layer: int, own: torch.Tensor, kv_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[B, kv_heads, keys, head_dim]`` of one layer.

        `own` are the pass's own, ``[rows, 2 * kv_heads * head_dim]``.
        """
        rows = self.pages.gather(layer, self.page_ids)
        # Not masked alone: what a page holds beyond its sequence may be NaN, and a NaN outlives a weight of zero.
        rows.index_fill_(0, self.blank, 0.0)
        rows.index_copy_(0, self.own_places, own.index_select(0, self.own_rows))
        batch = self.batch
        both = rows.view(batch, rows.shape[0] // batch, 2, kv_heads, -1)[:, : self.keys].permute(
            2, 0, 3, 1, 4
        )
        return both[0], both[1]

    @property
    def batch(self) -> int:
        return self.page_ids.shape[0] * KEY_BLOCK // self.width

    @property
    def width(self) -> int:
        return -(-self.keys // KEY_BLOCK) * KEY_BLOCK


def first_visible(length: int, window: int | None) -> int:
    """Index of the first context token that any slot may see, `length` context tokens before the anchor."""
    return 0 if window is None else max(0, length - window + 1)


def visible(slots: torch.Tensor, keys: torch.Tensor, layer: LayerAttention) -> torch.Tensor:
    """Which keys each slot sees, bool, by their positions, which broadcast against each other.

    A slot at q sees a key at k iff ``q - k < window``, and ``k <= q`` where the layer is causal, else ``k - q < window``.
    """
    ahead = keys - slots
    seen = ahead <= 0 if layer.causal else torch.ones_like(ahead, dtype=torch.bool)
    if layer.window is not None:
        seen &= (-ahead < layer.window) & (ahead < layer.window)
    return seen


@dataclass(frozen=True)
class _Span:
    """The pages of one block that a layer needs: `first` and following, `count` of them with room for the block's own."""

    block: Block
    first: int
    count: int


def make_buckets(blocks: Iterable[Block], layer: LayerAttention, dtype: torch.dtype) -> list[Bucket]:
    """Sort the blocks of a pass into buckets, for layers that attend like `layer`; biases in `dtype`."""
    spans = []
    for block in blocks:
        first = first_visible(block.length, layer.window) // KEY_BLOCK
        spans.append(_Span(block, first, -(-(block.length + len(block.rows)) // KEY_BLOCK) - first))
    spans.sort(key=lambda span: (id(span.block.pages), -span.count))
    groups: list[list[_Span]] = []
    for span in spans:
        if not groups or not _joins(groups[-1], span):
            groups.append([])
        groups[-1].append(span)
    return [_bucket(group, layer, dtype) for group in groups]


def _joins(group: Sequence[_Span], span: _Span) -> bool:
    """Whether a block, no larger than the group's first, is worth padding to that one's pages."""
    largest = group[0]
    return (
        span.block.pages is largest.block.pages
        and 4 * span.count + 8 >= 3 * largest.count
        and (len(group) + 1) * largest.count <= _MOST_PAGES
    )


def _bucket(spans: Sequence[_Span], layer: LayerAttention, dtype: torch.dtype) -> Bucket:
    device = spans[0].block.pages.data.device
    count, most = spans[0].count, max(len(span.block.rows) for span in spans)
    width = count * KEY_BLOCK
    page_ids: list[int] = []
    own_rows: list[int] = []
    own_places: list[int] = []
    queries: list[int] = []
    answers: list[int] = []
    for index, span in enumerate(spans):
        rows, first = span.block.rows, span.first
        held = span.block.table[first : first + -(-span.block.length // KEY_BLOCK) - first]
        page_ids += [*held, *[held[0] if held else 0] * (count - len(held))]
        begin = index * width + span.block.length - first * KEY_BLOCK
        own_rows += rows
        own_places += range(begin, begin + len(rows))
        queries += [*rows, *[rows[0]] * (most - len(rows))]
        answers += range(index * most, index * most + len(rows))
    starts = torch.tensor([span.first * KEY_BLOCK for span in spans], device=device)[:, None]
    lengths = torch.tensor([span.block.length for span in spans], device=device)[:, None]
    sizes = torch.tensor([len(span.block.rows) for span in spans], device=device)[:, None]
    positions = starts + torch.arange(width, device=device)
    filled = positions < lengths + sizes
    keys = max(s.block.length + len(s.block.rows) - s.first * KEY_BLOCK for s in spans)

    def ids(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return Bucket(
        pages=spans[0].block.pages,
        page_ids=ids(page_ids),
        own_rows=ids(own_rows),
        own_places=ids(own_places),
        blank=(~filled).flatten().nonzero().flatten(),
        queries=ids(queries),
        answers=ids(answers),
        bias=_bias(positions[:, :keys], filled[:, :keys], lengths, most, layer, dtype),
        keys=keys,
    )


def _bias(
    positions: torch.Tensor,
    filled: torch.Tensor,
    lengths: torch.Tensor,
    slots: int,
    layer: LayerAttention,
    dtype: torch.dtype,
) -> torch.Tensor | None:
    """`Bucket.bias` of keys at ``positions [B, keys]`` of which `filled` count, for `slots` slots from ``lengths [B, 1]`` on."""
    seen = filled[:, None]
    if layer.causal or layer.window is not None:
        at = lengths[:, :, None] + torch.arange(slots, device=lengths.device)[:, None]
        seen = seen & visible(at, positions[:, None], layer)
    if bool(seen.all()):
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)[:, None]


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Grouped-query attention with scale ``head_dim ** -0.5``.

    Args:
        queries: ``[batch, rows, heads, head_dim]``; query head h reads key head ``h // (heads / kv_heads)``.
        keys, values: ``[batch, kv_heads, num_keys, head_dim]``.
        bias: ``[batch, 1, 1 or rows, num_keys]``, added to the scores; or None.
        sinks: ``[heads]``: a logit per head that takes part in the softmax and carries no value.

    Returns:
        ``[batch, rows, heads * head_dim]``.
    """
    batch, rows, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    groups = heads // kv_heads
    # The query heads that share a key head become further rows of one product: no key is copied or expanded.
    folded = queries.view(batch, rows, kv_heads, groups, dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, kv_heads, groups * rows, dim)
    if bias is not None:
        bias = bias.expand(-1, -1, groups * rows, -1) if bias.shape[2] == 1 else bias.repeat(1, 1, groups, 1)
    if sinks is None:
        out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=bias)
    else:
        out = _with_sinks(folded, keys, values, bias, sinks.view(-1, groups).repeat_interleave(rows, 1))
    out = out.view(batch, kv_heads, groups, rows, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, rows, heads * dim)


def _with_sinks(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    sinks: torch.Tensor,
) -> torch.Tensor:
    scores = (queries @ keys.mT).float() * queries.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    extra = sinks[None, :, :, None].float().expand(scores.shape[0], -1, -1, -1)
    weights = torch.cat((scores, extra), -1).softmax(-1)[..., :-1]
    return weights.to(values.dtype) @ values
