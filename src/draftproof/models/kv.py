"""Keys and values of a target's sequences, in pages of whole key blocks anchored at absolute positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

KEY_BLOCK = 64
"""Positions in one page. Attention works block by block from position 0, so block edges never move."""
LANES = 16
"""Head widths are stored as multiples of this, the rest zeros: products of ragged widths are split between threads in ways
that depend on a row's place."""


def padded(rows: torch.Tensor) -> torch.Tensor:
    """`rows` with its last dimension brought up to a multiple of `LANES` by zeros."""
    ragged = -rows.shape[-1] % LANES
    return functional.pad(rows, (0, ragged)) if ragged else rows


def _up(width: int) -> int:
    return width + -width % LANES


@dataclass(frozen=True)
class LayerShape:
    """What one layer keeps of a position.

    Attributes:
        kv_heads: key/value heads.
        key_dim, value_dim: the model's own widths of a key and of a value.
    """

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def key_width(self) -> int:
        """Width of a key as stored."""
        return _up(self.key_dim)

    @property
    def value_width(self) -> int:
        """Width of a value as stored."""
        return _up(self.value_dim)

    @property
    def page_entries(self) -> int:
        """Numbers that one page of this layer holds."""
        return self.kv_heads * KEY_BLOCK * (self.key_width + self.value_width)


class TargetPages:
    """Storage for keys and values of all layers, in pages of `KEY_BLOCK` positions.

    All layers of a page lie together, so that a page is copied and cleared in one go. Memory starts as zeros and, on the
    CPU, is taken from the system only when it is first written: a large pool costs nothing until it is used.

    Attributes:
        shapes: what each layer keeps; None for a layer that does not attend.
        num_pages: how many pages there are.
        dtype: of the stored numbers: that in which the model makes keys and values, so storing is exact.
        keys: for each layer ``[num_pages, kv_heads, key_width, KEY_BLOCK]``: transposed, so that neighbouring positions
            are neighbours in memory. None where the shape is.
        values: for each layer ``[num_pages, kv_heads, KEY_BLOCK, value_width]``.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape | None],
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shapes = tuple(shapes)
        self.dtype, self.device = dtype, device
        self._entries = sum(shape.page_entries for shape in self.shapes if shape is not None)
        self._adopt(self._zeros(num_pages))

    @staticmethod
    def bytes_per_page(shapes: Sequence[LayerShape | None], dtype: torch.dtype) -> int:
        """Bytes of one page."""
        return dtype.itemsize * sum(shape.page_entries for shape in shapes if shape is not None)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`keys` and `values` of a layer that attends."""
        keys, values = self.keys[index], self.values[index]
        assert keys is not None
        assert values is not None
        return keys, values

    @torch.inference_mode()
    def copy(self, source: int, destination: int) -> None:
        """Make page `destination` equal to page `source`, in all layers."""
        self._storage[destination] = self._storage[source]

    @torch.inference_mode()
    def clear(self, pages: Sequence[int]) -> None:
        """Make these pages zeros again, in all layers."""
        for page in pages:
            self._storage[page] = 0

    @torch.inference_mode()
    def fill(self, number: float) -> None:
        """Make everything this number: tests put NaN where nothing should ever be read."""
        self._storage.fill_(number)

    def grow(self, num_pages: int) -> None:
        """Have at least `num_pages` pages. Existing ones keep their numbers and contents, but move in memory."""
        if num_pages > self.num_pages:
            grown = self._zeros(num_pages)
            grown[: self.num_pages] = self._storage
            self._adopt(grown)

    def _zeros(self, num_pages: int) -> torch.Tensor:
        size = (num_pages, self._entries)
        if self.device.type != "cpu" or num_pages * self._entries == 0:
            return torch.zeros(size, dtype=self.dtype, device=self.device)
        # numpy asks the system for zeroed memory, which it gives page by page on first use; torch.zeros writes it all.
        flat = np.zeros(num_pages * self._entries * self.dtype.itemsize, np.uint8)
        return torch.from_numpy(flat).view(self.dtype).view(size)

    def _adopt(self, storage: torch.Tensor) -> None:
        self._storage, self.num_pages = storage, storage.shape[0]
        self.keys: list[torch.Tensor | None] = []
        self.values: list[torch.Tensor | None] = []
        at = 0
        for shape in self.shapes:
            if shape is None:
                self.keys.append(None)
                self.values.append(None)
                continue
            keys_end = at + shape.kv_heads * shape.key_width * KEY_BLOCK
            end = at + shape.page_entries
            self.keys.append(
                storage[:, at:keys_end].unflatten(1, (shape.kv_heads, shape.key_width, KEY_BLOCK))
            )
            self.values.append(
                storage[:, keys_end:end].unflatten(1, (shape.kv_heads, KEY_BLOCK, shape.value_width))
            )
            at = end


class SequenceKV:
    """One sequence's view of pages: which of them, in order of position, and how many positions count.

    A forward pass appends rows behind `length`; `commit_to` keeps a prefix of them and forgets the rest. What is forgotten
    stays in memory until it is overwritten, but attention never looks past the rows it is asked about.

    Attributes:
        pages: where the keys and values lie.
        table: page numbers; position p lies in page ``table[p // KEY_BLOCK]`` at offset ``p % KEY_BLOCK``. The list may be
            shared with whoever hands out pages, and be changed by them between passes.
        length: committed positions.
        written: positions that the last pass has written.
    """

    def __init__(self, pages: TargetPages, table: list[int], length: int = 0) -> None:
        self.pages = pages
        self.table = table
        self.length = self.written = length

    def reserve(self, positions: int) -> None:
        """See to it that `positions` positions have pages.

        Raises:
            RuntimeError: they have not: whoever owns the pages did not hand out enough.
        """
        if len(self.table) * KEY_BLOCK < positions:
            raise RuntimeError(
                f"{positions} positions need {-(-positions // KEY_BLOCK)} pages; the table has {len(self.table)}"
            )

    def commit_to(self, length: int) -> None:
        """Keep positions ``0 ... length - 1``, forget the rest (rollback).

        Raises:
            ValueError: `length` is negative or beyond what has been written.
        """
        if not 0 <= length <= self.written:
            raise ValueError(f"cannot commit to {length} positions: {self.written} are written")
        self.length = self.written = length


class PrivateKV(SequenceKV):
    """A sequence with pages of its own, which grow as it does."""

    def __init__(self, pages: TargetPages) -> None:
        super().__init__(pages, list(range(pages.num_pages)))

    def reserve(self, positions: int) -> None:
        """Make room for `positions` positions; doubles, so that growth costs a constant per token."""
        needed = -(-positions // KEY_BLOCK)
        if needed > self.pages.num_pages:
            self.pages.grow(max(needed, 2 * self.pages.num_pages))
            self.table.extend(range(len(self.table), self.pages.num_pages))
