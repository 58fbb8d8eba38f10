"""One pass of the target as its attention layers see it: whose rows these are, and in which pages their keys lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from draftproof.errors import ModelError
from draftproof.models import kernels
from draftproof.models.attention_reference import AttentionRule, TilePlan, attend, plan_tiles
from draftproof.models.kv import KEY_BLOCK, LayerShape, TargetPages, padded
from draftproof.models.rows import Segment


class PagePlan:
    """Those segments of a pass whose sequences share one storage. Made once a pass, used by every layer.

    Attributes:
        pages: the storage.
        spans: int64 ``[segments, 4]``: first row in the pass, number of rows, position of the first row, and where in
            `tables` the sequence's page numbers begin.
        tables: int64, the page numbers of all sequences, one after the other.
        pairs: about how many pairs of a query and a key there are.
    """

    def __init__(self, pages: TargetPages, segments: Sequence[tuple[int, Segment]]) -> None:
        self.pages = pages
        spans: list[tuple[int, int, int, int]] = []
        tables: list[int] = []
        for first_row, segment in segments:
            kv = segment.kv
            end = kv.length + segment.count
            kv.reserve(end)
            spans.append((first_row, segment.count, kv.length, len(tables)))
            tables.extend(kv.table[: -(-end // KEY_BLOCK)])
        if tables and not 0 <= min(tables) <= max(tables) < pages.num_pages:
            raise RuntimeError(
                f"page numbers must lie in 0..{pages.num_pages - 1}, got {min(tables)} to {max(tables)}"
            )
        self.spans = np.array(spans, np.int64)
        self.tables = np.array(tables, np.int64)
        self.pairs = sum(count * (start + count) for _, count, start, _ in spans)
        self._tiles: dict[tuple[int, int, int | None], list[TilePlan]] = {}
        self._tasks: dict[tuple[int, int, int], np.ndarray] = {}
        self._places: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._blocks: list[torch.Tensor] | None = None

    def tasks(self, group: int, kv_heads: int, threads: int) -> np.ndarray:
        """How the compiled kernel cuts the work: see `kernels.cut_tasks`."""
        key = (group, kv_heads, threads)
        if key not in self._tasks:
            self._tasks[key] = kernels.cut_tasks(self.spans, group, kv_heads, threads)
        return self._tasks[key]

    def store(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the rows' `keys` and `values` ``[kv_heads, rows, dim]`` (of the whole pass) to their places."""
        if self._places is None:
            self._places = self._find_places()
        rows, pages, offsets = self._places
        own_keys, own_values = self.pages.layer(layer)
        own_keys[pages, :, :, offsets] = padded(keys)[:, rows].transpose(0, 1).to(self.pages.dtype)
        own_values[pages, :, offsets] = padded(values)[:, rows].transpose(0, 1).to(self.pages.dtype)

    def attend(self, layer: int, query: torch.Tensor, rule: AttentionRule, out: torch.Tensor) -> None:
        """Fill the segments' rows of `out` ``[rows, heads, value_dim]`` from `query` ``[heads, rows, dim]``."""
        keys, values = self.pages.layer(layer)
        shape = self.pages.shapes[layer]
        assert shape is not None
        group = query.shape[0] // shape.kv_heads
        for index, (first_row, count, start, _) in enumerate(self.spans.tolist()):
            blocks = self._blocks_of(index)
            key = (index, group, rule.window)
            if key not in self._tiles:
                self._tiles[key] = plan_tiles(start, count, group, rule.window, query.device)
            rows = slice(first_row, first_row + count)
            out[rows] = attend(
                query[:, rows], keys[blocks], values[blocks], shape.value_dim, self._tiles[key], rule
            )

    def _find_places(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Row in the pass, page and offset of every token of the segments."""
        rows, pages, offsets = [], [], []
        for first_row, count, start, table in self.spans.tolist():
            positions = np.arange(start, start + count)
            rows.append(np.arange(first_row, first_row + count))
            pages.append(self.tables[table + positions // KEY_BLOCK])
            offsets.append(positions % KEY_BLOCK)
        device = self.pages.device
        row, page, offset = (
            torch.from_numpy(np.concatenate(part)).to(device) for part in (rows, pages, offsets)
        )
        return row, page, offset

    def _blocks_of(self, index: int) -> torch.Tensor:
        if self._blocks is None:
            ends = [*self.spans[1:, 3].tolist(), len(self.tables)]
            self._blocks = [
                torch.from_numpy(self.tables[first:end]).to(self.pages.device)
                for first, end in zip(self.spans[:, 3].tolist(), ends, strict=True)
            ]
        return self._blocks[index]


class ForwardPass:
    """One pass of the target: its rows, sequence by sequence, and where their keys and values lie.

    Args:
        segments: the pass's segments, in the order of their rows.
        compiled: whether the compiled kernel does the work; one choice for all passes of a target.

    Raises:
        RuntimeError: a sequence's pages do not suffice for its rows.
    """

    def __init__(self, segments: Sequence[Segment], compiled: bool) -> None:
        self.windows: dict[int, int | None] = {}
        """Window of every layer that has attended in this pass."""
        self._compiled = compiled
        self._plans = _plan_pages(segments)

    def enter(self, layer: int, window: int | None) -> None:
        """Note that a layer attends. A layer has one place for keys and values, so it may do so once a pass."""
        if layer in self.windows:
            raise ModelError(
                "DP253", f"layer {layer} attends more than once in a pass, which draftproof does not support"
            )
        self.windows[layer] = window

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule
    ) -> torch.Tensor:
        """Store the rows' keys and values, then attend.

        Args:
            layer: which layer.
            query: ``[heads, rows, dim]``.
            key, value: ``[kv_heads, rows, dim]``.
            rule: what the layer asks for.

        Returns:
            ``[rows, heads, value_dim]`` in the query's dtype.

        Raises:
            ModelError: DP253, the layer's keys and values are shaped otherwise than when the model was loaded.
        """
        self.enter(layer, rule.window)
        shape = LayerShape(key.shape[0], key.shape[-1], value.shape[-1])
        out = query.new_empty(query.shape[1], query.shape[0], shape.value_dim)
        for plan in self._plans:
            if plan.pages.shapes[layer] != shape:
                raise _changed_shape(layer, shape, plan.pages.shapes[layer])
            if self._compiled:
                kernels.store(plan, layer, key, value)
                kernels.attend(plan, layer, query, rule, out)
            else:
                plan.store(layer, key, value)
                plan.attend(layer, query, rule, out)
        return out


class ProbingPass(ForwardPass):
    """The first pass of a model: `count` tokens of a new sequence; nothing is stored, but every layer's shape is noted."""

    def __init__(self, count: int, num_layers: int) -> None:
        super().__init__((), compiled=False)
        self._count = count
        self.shapes: list[LayerShape | None] = [None] * num_layers
        """What each layer keeps; None for a layer that did not attend."""
        self.dtypes: set[torch.dtype] = set()
        """In which the model makes keys and values."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule
    ) -> torch.Tensor:
        """As in any pass, over the pass's own rows alone."""
        self.enter(layer, rule.window)
        shape = LayerShape(key.shape[0], key.shape[-1], value.shape[-1])
        self.shapes[layer] = shape
        self.dtypes |= {key.dtype, value.dtype}
        keys, values = _one_block(key).transpose(1, 2), _one_block(value)
        plans = plan_tiles(0, self._count, query.shape[0] // shape.kv_heads, rule.window, query.device)
        return attend(query, keys[None], values[None], shape.value_dim, plans, rule).to(query.dtype)


def _plan_pages(segments: Sequence[Segment]) -> list[PagePlan]:
    """Segments by the storage of their sequences: one plan where all share a pool."""
    together: dict[int, list[tuple[int, Segment]]] = {}
    first_row = 0
    for segment in segments:
        together.setdefault(id(segment.kv.pages), []).append((first_row, segment))
        first_row += segment.count
    return [PagePlan(some[0][1].kv.pages, some) for some in together.values()]


def _one_block(rows: torch.Tensor) -> torch.Tensor:
    """``[kv_heads, n, dim]`` as one block ``[kv_heads, KEY_BLOCK, width]``, zeros behind."""
    block = padded(rows).float()
    return torch.nn.functional.pad(block, (0, 0, 0, KEY_BLOCK - block.shape[1]))


def _changed_shape(layer: int, now: LayerShape, then: LayerShape | None) -> ModelError:
    before = (
        "did not attend" if then is None else f"kept {then.kv_heads} x ({then.key_dim} + {then.value_dim})"
    )
    return ModelError(
        "DP253",
        f"layer {layer} keeps {now.kv_heads} x ({now.key_dim} + {now.value_dim}) numbers for a token, but when the model was "
        f"loaded it {before}; draftproof needs layers that attend alike in every pass",
    )
