"""DFlash with each of its passes as one compiled call.

The same drafter as `DFlashDrafter`, for the plain DFlash layout on a CPU (`fused_supported`); the two agree in float32 up to
rounding. A proposal's whole way, from token ids to chosen tokens and their probabilities, is compiled where the LM head
is at hand as a packed weight and the request is greedy; sampled rows get their logits, and choose as ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from draftproof.models.drafters.base import ContextUpdate, DraftProposal, DraftRequest, TargetInfo
from draftproof.models.drafters.checkpoint import Checkpoint
from draftproof.models.drafters.choice import Draw, choose_tokens, probability
from draftproof.models.drafters.config import DrafterConfig
from draftproof.models.drafters.context import DFlashState
from draftproof.models.drafters.fused_weights import ACTIVATIONS, AngleTable, FusedWeights, Precisions
from draftproof.models.drafters.kept_context import ContextKeeper, usable
from draftproof.models.drafters.vocabulary import spread
from draftproof.models.kernels import drafter as program
from draftproof.models.kernels import weight_fields
from draftproof.models.kernels.gemm import multiply
from draftproof.models.kernels.launching import launch
from draftproof.models.kernels.packing import GROUP, KINDS, TILE, PackedWeight, Precision
from draftproof.models.kernels.phases import counters_for
from draftproof.models.kv import KEY_BLOCK

_DTYPES = (torch.float32, torch.bfloat16)
_MOST_ROWS = 512
"""Rows of one pass of `extend`."""
_MANY_THREADS = 64
_VALUE_BYTES = {Precision.FLOAT32: 4, Precision.BFLOAT16: 2, Precision.INT8: 1, Precision.INT4: 1}


def fused_supported(config: DrafterConfig, target: TargetInfo, dtype: torch.dtype) -> bool:
    """Whether compiled passes cover a checkpoint: everything but DFlash 2 and two rare activations, on a CPU."""
    return (
        config.conv is None
        and config.selector is None
        and config.hidden_act in ACTIVATIONS
        and target.device.type == "cpu"
        and dtype in _DTYPES
        and target.embedding.dtype in _DTYPES
    )


class FusedDFlashDrafter(ContextKeeper):
    """A plain DFlash checkpoint as a `Drafter`. See `Drafter` for the methods' contract.

    Args:
        checkpoint: read and checked against `target`; `fused_supported` must hold.
        target: whose embedding and LM head it borrows where the checkpoint brings none.
        block_size: anchor plus mask slots of the longest block, at most the checkpoint's own.
        dtype: of the context's keys and values.
        precisions: of the products; None for what `Precisions.default` says.

    Raises:
        ValueError: weights that an integer precision cannot hold.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        target: TargetInfo,
        block_size: int,
        dtype: torch.dtype,
        precisions: Precisions | None = None,
    ) -> None:
        config = checkpoint.config
        super().__init__(config, target.hidden_size, block_size, dtype, target.device)
        self.precisions = precisions or Precisions.default(dtype)
        self._weights = FusedWeights(
            config, checkpoint.tensors, target, self.precisions, dtype, checkpoint.vocabulary
        )
        self._vocabulary = checkpoint.vocabulary
        self._norm = self._weights.norm
        self._angles = AngleTable(config.rope)
        self._head, self._head_dtype = target.lm_head, target.dtype
        self._scratch = _Scratch(self._weights)
        self._one_pass = threading.Lock()  # passes share the scratch memory

    @property
    def packed_head(self) -> PackedWeight | None:
        """The LM head it multiplies with; None where the target's is called."""
        return self._weights.head

    @torch.no_grad()
    def extend(self, updates: Sequence[ContextUpdate]) -> None:
        """Append context keys and values, all in one pass; see `Drafter.extend`.

        Raises:
            DrafterError: DP316 a start or the features' width is not what a state needs.
            RuntimeError: a table is too short for its tokens, or names a page that does not exist.
        """
        lengths = self._reserved(updates)
        tables: list[int] = []
        pieces: list[list[int]] = [[]]
        features = []  # kept until the pass is over
        room = _MOST_ROWS
        for update in updates:
            assert update.features is not None
            part, state = _readable(update.features), update.state
            features.append(part)
            count, first, size = part.shape[0], 0, part.element_size()
            place, stride = [len(tables), *_memory(state)], part.stride(0) * size
            tables += _table(state, update.start + count)
            while first < count:
                if room == 0:
                    pieces.append([])
                    room = _MOST_ROWS
                some = min(room, count - first)
                source = [part.data_ptr() + first * stride, stride, size == 2]
                pieces[-1] += [_MOST_ROWS - room, some, update.start + first, *place, *source]
                first += some
                room -= some
        if not pieces[0]:
            return
        table = np.array(tables, np.int64)
        with self._one_pass:
            for index, piece in enumerate(pieces):
                rows = _MOST_ROWS - room if index == len(pieces) - 1 else _MOST_ROWS
                spans = np.array(piece, np.int64)
                call = self._scratch.call_for(rows, program.EXTEND_PHASES)
                call[program.SPANS], call[program.TABLES] = spans.ctypes.data, table.ctypes.data
                call[program.ROPE] = self._angles.up_to(max(lengths.values()))
                call[program.NUM_ROWS] = rows
                self._launch(program.extend)
        for update in updates:
            update.state.length = lengths[id(update.state)]

    @torch.no_grad()
    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """One pass over all requests' blocks; see `Drafter.propose`.

        A sequence whose hidden states are not finite (because the target's were not) gets no draft tokens from there on, the
        others get theirs.

        Raises:
            DrafterError: DP316 a state does not hold exactly the tokens before its anchor.
        """
        draws = self._draws(requests)
        counts = [draw.count for draw in draws]
        if not any(counts):
            nothing = torch.empty(0, dtype=torch.int64)
            return [DraftProposal(nothing.clone(), torch.empty(0, dtype=torch.float32)) for _ in requests]
        mask = self.config.mask_token_id
        asking = [(r, n) for r, n in zip(requests, counts, strict=True) if n]
        states = [request.state for request, _ in asking]
        ids = [[int(request.tokens[-1]), *[mask] * n] for request, n in asking]
        if self._weights.head is None:
            tokens, likely, finite = self._chosen_by_target(self._run(states, ids), counts, draws)
        else:
            tokens, likely, finite = self._chosen_here(states, ids, draws)
        fit = usable(finite, counts)
        if fit == counts:  # slicing costs more than it looks, for many sequences
            parts = zip(tokens.split(counts), likely.split(counts), strict=True)
            return [DraftProposal(chosen, probable) for chosen, probable in parts]
        trimmed = zip(tokens.split(counts), likely.split(counts), fit, strict=True)
        return [DraftProposal(chosen[:count], probable[:count]) for chosen, probable, count in trimmed]

    def _chosen_by_target(
        self, hidden: torch.Tensor, counts: Sequence[int], draws: Sequence[Draw]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, probabilities, and which rows are finite, by the target's own head."""
        slots = torch.cat([block[1:] for block in hidden.split([count + 1 for count in counts if count])])
        finite = slots.isfinite().all(-1)
        logits = self.logits(torch.where(finite[:, None], slots, 0.0))
        tokens = choose_tokens(logits, draws)
        return tokens, probability(logits, tokens), finite

    def _chosen_here(
        self, states: Sequence[DFlashState], ids: Sequence[list[int]], draws: Sequence[Draw]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, probabilities, and which rows are finite, by the packed head."""
        kept = 0
        places: list[int] = []  # where each row's logits go; -1 for rows that need none
        for draw in draws:
            places += [-1] * draw.count if draw.is_greedy else range(kept, kept + draw.count)
            kept += 0 if draw.is_greedy else draw.count
        known = self._vocabulary
        asked = _Asked(places, kept, self.config.vocab_size if known is None else len(known))
        self._run(states, ids, asked)
        if not kept:
            tokens = asked.tokens if known is None else known[asked.tokens]
        else:
            sampled = [draw for draw in draws if not draw.is_greedy]
            logits = asked.logits if known is None else spread(asked.logits, known, self.config.vocab_size)
            chosen, rows = choose_tokens(logits, sampled), torch.tensor([place >= 0 for place in places])
            asked.likely[rows] = probability(logits, chosen)
            tokens = asked.tokens.masked_fill(rows, 0)
            tokens = tokens if known is None else known[tokens]
            tokens[rows] = chosen
        return tokens, asked.likely, asked.finite

    def block_hidden(self, states: Sequence[DFlashState], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Final hidden states ``[rows, hidden]``, float32, of a block of token ids for each sequence, block after block."""
        return self._run(states, ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Draft logits ``[rows, vocab]``: the bare head, times the multiplier, then the own soft cap; -inf for tokens that the
        checkpoint leaves out."""
        head, known = self._weights.head, self._vocabulary
        if head is None:
            logits = self._head(hidden.to(self._head_dtype))
        else:
            logits = multiply(hidden.float(), head)
            known = None if known is None else torch.arange(len(known))
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.softcap
        logits = logits if cap is None else (logits / cap).tanh() * cap
        if self._vocabulary is None or known is None:
            return logits
        return spread(logits[:, known], self._vocabulary, self.config.vocab_size)

    def _run(
        self, states: Sequence[DFlashState], ids: Sequence[Sequence[int]], asked: _Asked | None = None
    ) -> torch.Tensor:
        """The compiled pass. Fills `asked`, or gives the hidden states of all rows (empty otherwise)."""
        tokens: list[int] = []
        tables: list[int] = []
        spans: list[int] = []
        logit_rows: list[int] = []
        end = most = 0
        pages, memory = None, (0, 0)
        for state, block in zip(states, ids, strict=True):
            count = len(block)
            if state.pages is not pages:
                pages, memory = state.pages, _memory(state)
            spans += [len(tokens), count, state.length, len(tables), *memory, 0, 0, 0]
            if asked is not None:
                first = len(tokens) - len(spans) // program.SPAN_FIELDS + 1  # each block before had an anchor
                logit_rows.append(-1)
                logit_rows += range(first, first + count - 1)
            tokens += block
            tables += _table(state, state.length)
            end, most = max(end, state.length + count), max(most, count)
        if not 0 <= min(tokens) <= max(tokens) < self.config.vocab_size:
            raise IndexError(f"tokens must lie in 0..{self.config.vocab_size - 1}, got {tokens}")
        numbers = np.array(tokens + logit_rows + spans + tables, np.int64)
        at, rows = numbers.ctypes.data, len(tokens)
        hidden = torch.empty(0 if asked else rows, self.config.hidden_size, dtype=torch.float32)
        with self._one_pass:
            call = self._scratch.call_for(rows, program.phases_of(self.config.num_layers))
            call[program.TOKENS] = at
            call[program.LOGIT_ROWS] = at + 8 * rows if asked else 0
            call[program.SPANS] = at + 8 * (rows + len(logit_rows))
            call[program.TABLES] = at + 8 * (rows + len(logit_rows) + len(spans))
            call[program.ROPE] = self._angles.up_to(end)
            call[program.HIDDEN_OUT] = 0 if asked else hidden.data_ptr()
            call[program.NUM_SPANS], call[program.NUM_ROWS] = len(states), rows
            call[program.MOST_SLOTS], call[program.NUM_ASKED] = most, 0
            if asked is not None:
                asked.describe(call)
            self._launch(program.propose)
        return hidden

    def _launch(self, start: Callable[..., Any]) -> None:
        layers, head = KINDS[self.precisions.layers], self._weights.head
        launch(
            start,
            self._scratch.call.ctypes.data,
            layers,
            layers if head is None or start is program.extend else KINDS[head.precision],
            _MANY_THREADS,
        )


class _Asked:
    """Room for what the head says about some rows.

    Attributes:
        tokens, likely, finite: ``[rows]``: the first best token, its probability, whether the row's hidden state is finite.
        logits: float32 ``[kept, vocab]`` of the rows that have a place there, whose tokens are still to be chosen.
    """

    def __init__(self, places: list[int], kept: int, vocab: int) -> None:
        rows = len(places)
        self.tokens = torch.tensor(places, dtype=torch.int64)
        self.likely = torch.empty(rows, dtype=torch.float32)
        self.finite = torch.empty(rows, dtype=torch.bool)
        self.logits = torch.empty(kept, vocab, dtype=torch.float32)
        self._threads = torch.get_num_threads()
        self._partials = np.zeros((self._threads, rows + 1, program.PARTIAL_FIELDS))

    def describe(self, call: np.ndarray) -> None:
        """Enter the addresses."""
        call[program.NUM_ASKED], call[program.THREADS] = len(self.tokens), self._threads
        call[program.CHOSEN], call[program.LIKELY] = self.tokens.data_ptr(), self.likely.data_ptr()
        call[program.FINITE], call[program.LOGITS] = self.finite.data_ptr(), self.logits.data_ptr()
        call[program.PARTIALS] = self._partials.ctypes.data


class _Scratch:
    """Memory that passes work in, kept from one to the next, and the numbers that describe a pass."""

    def __init__(self, weights: FusedWeights) -> None:
        model = weights.numbers
        layer = weights.layers[0]
        head = weights.precisions.head if weights.head is None else weights.head.precision
        size = max(_VALUE_BYTES[weights.precisions.layers], _VALUE_BYTES[head])
        mixed = int(model[program.HEADS] * model[program.HEAD_DIM])
        projected = max(
            int(layer[weight_fields.QKV + weight_fields.TILES]),
            int(model[program.CONTEXT + weight_fields.TILES]),
        )
        groups = weights.widest // GROUP
        self._widths = {
            program.STATE: int(model[program.STRIDE]) * 4,
            program.NORMED: int(model[program.STRIDE]) * 4,
            program.PROJECTED: projected * TILE * 4,
            program.MIXED: mixed * 4,
            program.GATED: int(layer[weight_fields.DOWN + weight_fields.PADDED_IN]) * 4,
            program.VALUES: weights.widest * size,
            program.VALUE_SCALES: groups * 4,
            program.VALUE_SUMS: groups * 4,
        }
        self._rows = 0
        self._counters = counters_for(program.phases_of(int(model[program.LAYERS])))
        self.call = np.zeros(program.CALL_FIELDS, np.int64)
        self.call[program.MODEL] = model.ctypes.data
        self.call[program.COUNTERS] = self._counters.ctypes.data

    def call_for(self, rows: int, phases: int) -> np.ndarray:
        """The numbers of a pass over `rows` rows, with room for them and counters at zero."""
        self._counters[:phases] = 0
        if rows > self._rows:
            self._rows = max(rows, 2 * self._rows)
            self._buffers = {
                field: torch.empty(self._rows * width, dtype=torch.uint8)
                for field, width in self._widths.items()
            }
            for field, buffer in self._buffers.items():
                self.call[field] = buffer.data_ptr()
        return self.call


def _readable(features: torch.Tensor) -> torch.Tensor:
    """The features on the CPU, in float32 or bfloat16, entries of a row side by side."""
    if features.dtype not in _DTYPES or features.device.type != "cpu":
        features = features.to(device="cpu", dtype=torch.float32)
    return features if features.stride(1) == 1 else features.contiguous()


def _memory(state: DFlashState) -> tuple[int, int]:
    """Where a state's pages begin, and bytes from layer to layer."""
    data = state.pages.data
    return data.data_ptr(), data.stride(0) * data.element_size()


def _table(state: DFlashState, length: int) -> list[int]:
    """The pages of the first `length` positions.

    Raises:
        RuntimeError: there are too few of them, or one does not exist.
    """
    needed = -(-length // KEY_BLOCK)
    table = state.table[:needed]
    if len(table) < needed or (table and not 0 <= min(table) <= max(table) < state.pages.num_pages):
        raise RuntimeError(
            f"{length} positions need {needed} pages out of {state.pages.num_pages}, but the table is {table}"
        )
    return table
