"""Keys and values of one sequence, in whole blocks anchored at absolute positions."""

from __future__ import annotations

import torch
from torch.nn import functional

KEY_BLOCK = 64
"""Positions in one block. Attention works block by block from position 0, so block edges never move."""
LANES = 16
"""Head widths are stored as multiples of this, the rest zeros: products of ragged widths are split between threads in ways
that depend on a row's place."""


def padded(rows: torch.Tensor) -> torch.Tensor:
    """`rows` with its last dimension brought up to a multiple of `LANES` by zeros."""
    ragged = -rows.shape[-1] % LANES
    return functional.pad(rows, (0, ragged)) if ragged else rows


class LayerKV:
    """Keys and values of one layer of one sequence.

    Attributes:
        keys: ``[blocks, kv_heads, KEY_BLOCK, head_dim]`` float32, head_dim brought up to a multiple of `LANES`.
        values: ``[blocks, kv_heads, KEY_BLOCK, value_dim]`` float32, likewise.
        value_dim: the model's own value width.

    Float32 also under bfloat16 weights: attention computes in float32, and storing what it reads saves a conversion of the
    whole context in every pass. Blocks start as zeros: no uninitialised entry is ever read.
    """

    def __init__(self, kv_heads: int, head_dim: int, value_dim: int, device: torch.device) -> None:
        self.value_dim = value_dim
        self.keys, self.values = (
            torch.zeros(0, kv_heads, KEY_BLOCK, width + -width % LANES, dtype=torch.float32, device=device)
            for width in (head_dim, value_dim)
        )

    def reserve(self, positions: int) -> None:
        """Make room for `positions` positions; doubles, so that growth costs a constant per token."""
        needed = -(-positions // KEY_BLOCK)
        have = self.keys.shape[0]
        if needed > have:
            self.keys = _grown(self.keys, max(needed, 2 * have))
            self.values = _grown(self.values, max(needed, 2 * have))

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store rows at positions ``start ...``: `keys` ``[kv_heads, n, head_dim]``, `values` ``[kv_heads, n, value_dim]``."""
        keys, values, count = padded(keys), padded(values), keys.shape[1]
        self.reserve(start + count)
        done = 0
        while done < count:
            block, offset = divmod(start + done, KEY_BLOCK)
            step = min(KEY_BLOCK - offset, count - done)
            self.keys[block, :, offset : offset + step] = keys[:, done : done + step]
            self.values[block, :, offset : offset + step] = values[:, done : done + step]
            done += step


def _grown(blocks: torch.Tensor, count: int) -> torch.Tensor:
    grown = blocks.new_zeros(count, *blocks.shape[1:])
    grown[: blocks.shape[0]] = blocks
    return grown


class SequenceKV:
    """All layers' keys and values of one sequence, and how many positions of them count.

    A forward pass appends rows behind `length`; `commit_to` keeps a prefix of them and forgets the rest. What is forgotten stays
    in memory until it is overwritten, but attention never looks past the rows it is asked about.
    """

    def __init__(self, num_layers: int) -> None:
        self.layers: list[LayerKV | None] = [None] * num_layers
        self.length = 0
        self.written = 0

    def layer(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> LayerKV:
        """The layer's store, made to fit `keys` ``[kv_heads, n, head_dim]`` and `values` on first use."""
        store = self.layers[index]
        if store is None:
            store = LayerKV(keys.shape[0], keys.shape[-1], values.shape[-1], keys.device)
            self.layers[index] = store
        return store

    def commit_to(self, length: int) -> None:
        """Keep positions ``0 ... length - 1``, forget the rest (rollback).

        Raises:
            ValueError: `length` is negative or beyond what has been written.
        """
        if not 0 <= length <= self.written:
            raise ValueError(f"cannot commit to {length} positions: {self.written} are written")
        self.length = self.written = length
