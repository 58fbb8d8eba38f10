"""The fused executor: a target whose whole pass is one compiled call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftproof.errors import ModelError
from draftproof.models.drafters.base import TargetInfo
from draftproof.models.fused.packed import PackedModel
from draftproof.models.fused.recycled import RecycledRows
from draftproof.models.fused.scratch import MAX_ROWS, Scratch
from draftproof.models.fused.shelf import FeatureShelf
from draftproof.models.fused.spec import FusedSpec
from draftproof.models.fused.work import Piece, cut, lay_out
from draftproof.models.kernels import forward as program
from draftproof.models.kernels.launching import launch
from draftproof.models.kernels.packing import KINDS, Precision
from draftproof.models.kernels.phases import counters_for
from draftproof.models.kv import LayerShape, PrivateKV, SequenceKV, TargetPages
from draftproof.models.rows import Segment, TargetOutput
from draftproof.models.self_test import rows_stand_alone

_ALL = 1 << 20
"""There is work for as many threads as there are."""


@dataclass(frozen=True)
class FusedStructure:
    """A model's sizes, under the names that `models.structure.Structure` gives them."""

    model_type: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position: int


class FusedTarget:
    """A causal LM behind the seam the engine works with; the fast twin of `models.target.Target`.

    `forward` is row-invariant: a token's logit row and features depend, bit for bit, on its own sequence up to it, not on
    what shares the pass, how the sequence was cut into passes, or how many threads there are.

    Args:
        spec: the model.
        precision: of its products; with `INT4` the LM head has 8 bits. Hidden states are float32; embedding, keys, values
            and features are float32 with `FLOAT32`, else bfloat16.
        name: how messages call it.
    """

    def __init__(self, spec: FusedSpec, precision: Precision, name: str) -> None:
        self.spec, self.precision, self.name = spec, precision, name
        self.device = torch.device("cpu")
        self.structure = FusedStructure(
            spec.model_type, spec.hidden_size, spec.num_layers, spec.vocab_size, spec.max_position
        )
        self._model = PackedModel(spec, precision)
        self.dtype = self._model.dtype
        shape = LayerShape(spec.kv_heads, spec.head_dim, spec.head_dim)
        self._shapes: tuple[LayerShape | None, ...] = (shape,) * spec.num_layers
        self._scratch = Scratch(spec, self._model, precision)
        self._one_pass = threading.Lock()  # passes share the scratch memory
        self._rows = RecycledRows(spec.vocab_size)
        self._shelf = FeatureShelf()
        self._taps: dict[tuple[int, ...], np.ndarray] = {}

    @property
    def info(self) -> TargetInfo:
        """What a drafter may borrow and is checked against."""
        spec = self.spec
        return TargetInfo(
            name=self.name,
            hidden_size=spec.hidden_size,
            num_layers=spec.num_layers,
            vocab_size=spec.vocab_size,
            max_position=spec.max_position,
            embedding=self._model.embedding,
            lm_head=self.lm_head,
            dtype=self.dtype,
            device=self.device,
            model_type=spec.model_type,
            packed_head=self._model.head,
        )

    @property
    def end_token_ids(self) -> frozenset[int]:
        """End tokens by the model's config."""
        return self.spec.end_token_ids

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as packed, the embedding included."""
        return self._model.nbytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of keys and values (`KEY_BLOCK` positions, all layers)."""
        return TargetPages.bytes_per_page(self._shapes, self.dtype)

    @property
    def has_compiled_attention(self) -> bool:
        """Always: there is no other form here."""
        return True

    def use_plain_attention(self) -> None:
        """Does nothing: where compiled code is not row-invariant, another executor has to take over."""

    def new_pages(self, num_pages: int) -> TargetPages:
        """Storage for the keys and values of many sequences, ``num_pages * page_bytes`` bytes, zeros."""
        return TargetPages(self._shapes, num_pages, self.dtype, self.device)

    def new_sequence(self) -> SequenceKV:
        """An empty sequence with pages of its own, which grow as it does."""
        return PrivateKV(self.new_pages(0))

    def self_test(self) -> bool:
        """Whether rows come out bit-identical alone, chunked and in company, on this machine: see `rows_stand_alone`.

        Raises:
            ModelError: DP263, the rows differ by more than rounding.
        """
        return rows_stand_alone(self, self.spec.vocab_size, self.spec.model_type)

    def forward(self, segments: Sequence[Segment], taps: Sequence[int] = ()) -> TargetOutput:
        """Run the tokens of all segments in one pass and append their keys and values.

        Nothing is committed: call ``segment.kv.commit_to`` with the length to keep. When the pass fails, every
        sequence is as it was.

        Args:
            segments: at least one, each of another sequence.
            taps: layers whose outputs make up the context features, in this order; none for no features. The last
                layer's output counts after the final norm.

        Returns:
            Logits float32; features in `dtype`.

        Raises:
            ModelError: DP257, no such tap; DP258, no room in the context.
            IndexError: a token is not in the vocabulary.
            RuntimeError: a sequence's page table is too short for its rows (private sequences grow by themselves), or its
                pages were made for another model.
        """
        tap_layers = self._tap_layers(tuple(taps))
        self._check(segments)
        for segment in segments:
            segment.kv.reserve(segment.kv.length + segment.count)
        rows = sum(segment.count for segment in segments)
        wanted = sum(max(0, segment.count - segment.logits_from) for segment in segments)
        features, home, first = None, None, 0
        with self._one_pass:
            if taps:
                home, first = self._shelf.take(rows, len(taps) * self.spec.hidden_size, self.dtype)
                features = home[first : first + rows]
            logits = self._rows.take(wanted)
            for piece in cut(segments, MAX_ROWS):
                self._run(piece, tap_layers, logits, features)
        for segment in segments:
            segment.kv.written = segment.kv.length + segment.count
        return TargetOutput(logits, features, home, first)

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """The bare LM head (no soft cap): ``[n, hidden]`` of any float dtype to float32 ``[n, vocab]``."""
        source = hidden.detach().to(torch.float32).contiguous()
        logits = torch.empty(source.shape[0], self.spec.vocab_size, dtype=torch.float32)
        with self._one_pass:
            for first in range(0, source.shape[0], MAX_ROWS):
                rows = min(MAX_ROWS, source.shape[0] - first)
                self._scratch.hold(rows)
                own = self._scratch.addresses
                own[program.LOGITS] = logits[first].data_ptr()
                counters, call = counters_for(2), np.zeros(program.CALL_FIELDS, np.int64)
                call[program.COUNTERS] = counters.ctypes.data
                call[program.MODEL] = self._model.numbers.ctypes.data
                call[program.OWN] = own.ctypes.data
                call[program.ROWS], call[program.NUM_ROWS] = source[first].data_ptr(), rows
                self._launch(program.start_head, call)
        return logits

    def _tap_layers(self, taps: tuple[int, ...]) -> np.ndarray:
        """Taps as the pass takes them, int64. Refuses those that do not exist; known ones need no second look."""
        known = self._taps.get(taps)
        if known is not None:
            return known
        for layer in taps:
            if not 0 <= layer < self.spec.num_layers:
                raise ModelError(
                    "DP257",
                    f"tap layers must lie in 0..{self.spec.num_layers - 1} ({self.name} has "
                    f"{self.spec.num_layers} layers), got {layer}",
                )
        self._taps[taps] = np.array(taps, np.int64)
        return self._taps[taps]

    def _check(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            end = segment.kv.length + segment.count
            if end > self.spec.max_position:
                raise ModelError(
                    "DP258",
                    f"position {end - 1} is beyond the context of {self.name}: {self.spec.max_position} tokens",
                )
            pages = segment.kv.pages
            if pages.shapes != self._shapes or pages.dtype != self.dtype:
                raise RuntimeError(f"a sequence's pages were not made by {self.name}")

    def _run(
        self, piece: Piece, taps: np.ndarray, logits: torch.Tensor, features: torch.Tensor | None
    ) -> None:
        """Run some rows of a pass; logits and features of the whole pass are filled from the piece's place on."""
        threads = torch.get_num_threads()
        work = lay_out(piece, self.spec, threads)
        self._scratch.hold(len(work.rows))
        own = self._scratch.addresses
        own[program.LOGITS] = logits.data_ptr() + piece.first_wanted * self.spec.vocab_size * 4
        if features is not None:
            width = features.shape[1] * features.element_size()
            own[program.FEATURES] = features.data_ptr() + piece.first_row * width
        ropes = np.array([rope.up_to(work.end).data_ptr() for rope in self.spec.ropes], np.int64)
        counters = counters_for(program.phases_of(self.spec.num_layers))
        model, call = self._model, np.zeros(program.CALL_FIELDS, np.int64)
        arrays = (
            (program.COUNTERS, counters),
            (program.MODEL, model.numbers),
            (program.REALS, model.measures),
            (program.LAYERS, model.layers),
            (program.OWN, own),
            (program.ROWS, work.rows),
            (program.TAPS, taps),
            (program.SPANS, work.spans),
            (program.TABLES, work.tables),
            (program.TASKS, work.tasks),
            (program.STORAGES, work.storages),
            (program.ROPES, ropes),
        )
        for field, array in arrays:
            call[field] = array.ctypes.data
            if field not in (program.COUNTERS, program.MODEL, program.REALS, program.OWN):
                call[field + 1] = len(array)  # how much there is follows where it is
        call[program.NUM_WANTED] = work.wanted
        self._launch(program.start_run, call)

    def _launch(self, start: Callable[..., None], call: np.ndarray) -> None:
        """Run a program on all threads."""
        launch(start, call.ctypes.data, KINDS[self.precision], self._model.head.kind, _ALL)
