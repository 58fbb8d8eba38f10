"""One pass as compiled code sees it: its rows, whose they are, and where their keys and values lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftproof.models import kernels
from draftproof.models.fused.spec import FusedSpec
from draftproof.models.kernels import forward as program
from draftproof.models.kv import KEY_BLOCK, TargetPages
from draftproof.models.rows import Segment


@dataclass(frozen=True)
class Part:
    """Rows ``[first, end)`` of a segment."""

    segment: Segment
    first: int
    end: int


@dataclass
class Piece:
    """Some rows of a pass, in order.

    Attributes:
        first_row, first_wanted: rows of the pass, and wanted rows, that come before.
        parts: whose rows these are.
    """

    first_row: int
    first_wanted: int
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """The arrays of a piece, as `kernels.forward.run` takes them.

    Attributes:
        end: one more than the highest position.
        wanted: rows whose logits are wanted.
    """

    rows: np.ndarray
    spans: np.ndarray
    tables: np.ndarray
    tasks: np.ndarray
    storages: np.ndarray
    end: int
    wanted: int


def cut(segments: Sequence[Segment], most: int) -> Iterator[Piece]:
    """A pass in pieces of at most `most` rows, in order. A sequence's later rows find the earlier ones stored."""
    row = wanted = 0
    piece = Piece(0, 0)
    room = most
    for segment in segments:
        first = 0
        while first < segment.count:
            if room == 0:
                yield piece
                piece, room = Piece(row, wanted), most
            end = min(segment.count, first + room)
            piece.parts.append(Part(segment, first, end))
            room -= end - first
            row += end - first
            wanted += max(0, end - max(first, segment.logits_from))
            first = end
    if piece.parts:
        yield piece


def lay_out(piece: Piece, spec: FusedSpec, threads: int) -> Work:
    """The arrays of a piece.

    Raises:
        IndexError: a token is not in the vocabulary.
        RuntimeError: a page number does not exist.
    """
    count = sum(part.end - part.first for part in piece.parts)
    rows = np.empty((count, program.ROW_FIELDS), np.int64)
    spans = np.empty((len(piece.parts), program.SPAN_FIELDS), np.int64)
    tables: list[int] = []
    stores: dict[int, tuple[int, TargetPages]] = {}
    at = wanted = end = 0
    for index, part in enumerate(piece.parts):
        segment = part.segment
        kv, some = segment.kv, part.end - part.first
        start = kv.length + part.first
        storage, _ = stores.setdefault(id(kv.pages), (len(stores), kv.pages))
        spans[index] = at, some, start, len(tables), storage
        table = kv.table[: -(-(start + some) // KEY_BLOCK)]
        _check_table(table, kv.pages)
        tables += table
        own = rows[at : at + some]
        own[:, program.TOKEN] = segment.token_ids[part.first : part.end].numpy()
        own[:, program.POSITION] = np.arange(start, start + some)
        own[:, program.LOGIT_ROW] = -1
        own[:, program.SPAN] = index
        asked = max(part.first, segment.logits_from) - part.first
        if asked < some:
            own[asked:, program.LOGIT_ROW] = np.arange(wanted, wanted + some - asked)
            wanted += some - asked
        at, end = at + some, max(end, start + some)
    tokens = rows[:, program.TOKEN]
    if tokens.min() < 0 or tokens.max() >= spec.vocab_size:
        raise IndexError(f"tokens must lie in 0..{spec.vocab_size - 1}, got {tokens.min()} to {tokens.max()}")
    return Work(
        rows=rows,
        spans=spans,
        tables=np.array(tables, np.int64),
        tasks=kernels.cut_tasks(
            spans[:, : program.STORAGE], spec.heads // spec.kv_heads, spec.kv_heads, threads
        ),
        storages=np.stack([_places(pages) for _, pages in stores.values()]),
        end=end,
        wanted=wanted,
    )


def _check_table(table: list[int], pages: TargetPages) -> None:
    if not 0 <= min(table) <= max(table) < pages.num_pages:
        raise RuntimeError(
            f"page numbers must lie in 0..{pages.num_pages - 1}, got {min(table)} to {max(table)}"
        )


def _places(pages: TargetPages) -> np.ndarray:
    """Where each layer's keys and values begin, and numbers from page to page: int64 ``[layers, 3]``.

    Layers are alike and lie one after the other, so two addresses tell all.
    """
    keys, values = pages.layer(0)
    shape = pages.shapes[0]
    assert shape is not None
    steps = np.arange(len(pages.shapes)) * (shape.page_entries * pages.dtype.itemsize)
    places = np.empty((len(steps), 3), np.int64)
    places[:, program.KEYS] = keys.data_ptr() + steps
    places[:, program.PAGE_VALUES] = values.data_ptr() + steps
    places[:, program.PAGE_STRIDE] = keys.stride(0)
    return places
