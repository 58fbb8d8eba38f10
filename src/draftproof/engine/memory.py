"""The pool: one set of block tables over the target's pages and the drafter's.

Whatever happens to a sequence's blocks happens here, for both models at once: restored from the prefix cache, extended, copied
before a shared one is written, given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from draftproof.cache import BlockCache, BlockTable
from draftproof.engine.loft import Loft, Pending, cut, gather, split
from draftproof.engine.sequence import KeptRows, Sequence, SequenceMemory
from draftproof.engine.undisturbed import undisturbed
from draftproof.errors import RequestError
from draftproof.models.drafters.base import ContextUpdate, Drafter
from draftproof.models.executor import TargetModel
from draftproof.models.kv import KEY_BLOCK, SequenceKV
from draftproof.models.rows import TargetOutput

FLUSH_AT = 128
"""Decoded tokens whose context waits for a drafter at most that has no pages or no taps."""
LOFT_BYTES = 32 << 20
"""Features that wait in the loft at most; and as much again for the sequences that run."""
LOOK_EVERY = 16
"""Steps between two looks at how much waits."""
FEW_ROWS = 64
"""Rows of a pass whose features may be kept as they are, for the sake of any of them."""


def bytes_per_block(target: TargetModel, drafter: Drafter | None) -> int:
    """Memory of one block of `KEY_BLOCK` positions, target's and drafter's pages together."""
    return target.page_bytes + (drafter.page_bytes if drafter is not None else 0)


def blocks_within(budget: int, target: TargetModel, drafter: Drafter | None, max_model_len: int) -> int:
    """How many blocks a memory budget buys.

    Raises:
        RequestError: DP441, not even one sequence of `max_model_len` fits.
    """
    each = bytes_per_block(target, drafter)
    blocks, needed = budget // each, -(-max_model_len // KEY_BLOCK)
    if blocks < needed:
        raise RequestError(
            "DP441",
            f"kv_cache_memory of {budget} bytes holds {blocks * KEY_BLOCK} tokens, and one sequence may have {max_model_len}: "
            f"give at least {needed * each} bytes, or lower max_model_len",
        )
    return blocks


@dataclass
class Upkeep:
    """What keeping the drafter's context up to date has cost so far: tokens taken in, and seconds."""

    tokens: int = 0
    seconds: float = 0.0


class KVMemory:
    """Block tables, pages of both models, and the prefix cache over them.

    Args:
        target: whose keys and values.
        drafter: whose context keys and values; None without one.
        num_blocks: of `KEY_BLOCK` positions each.
        prefix_caching: keep blocks of finished sequences for prompts that begin alike.

    Attributes:
        upkeep: what the drafter's context has cost.
        idle: drafting has not paid of late. What waits beyond the limits is then given up, not computed, and its sequence goes
            undrafted.
        fills: whether the missing part of a cached prefix is worth computing anew; takes the tokens missing and those to come.
    """

    def __init__(
        self, target: TargetModel, drafter: Drafter | None, num_blocks: int, prefix_caching: bool = True
    ) -> None:
        self.target = target
        self._pages = target.new_pages(num_blocks)
        self._loft = Loft()
        self.cache = BlockCache(
            num_blocks,
            block_size=KEY_BLOCK,
            copy_block=self._copy,
            block_taken=self._loft.drop,
            prefix_caching=prefix_caching,
        )
        self.upkeep = Upkeep()
        self.idle = False
        self.fills: Callable[[int, int], bool] = lambda missing, to_come: True
        self._steps = 0
        self._drafters_seen = 0
        self.use_drafter(drafter)

    def use_drafter(self, drafter: Drafter | None) -> None:
        """From now on this drafter's context goes with the blocks.

        Cached blocks keep the target's entries. They hold nothing of the new drafter, and the cache knows: a hit ends where the
        drafter's entries would be missing, so that they are computed anew.
        """
        if self.cache.num_referenced:
            raise RuntimeError("the drafter can only be replaced while nothing is running")
        self.drafter = drafter
        self._drafters_seen += 1
        keeps = drafter is not None and drafter.page_bytes > 0
        self._drafter_pages: Any = (
            drafter.new_pages(self.cache.num_blocks) if drafter is not None and keeps else None
        )
        self._drafter_key = f"{drafter.name}#{self._drafters_seen}" if drafter is not None and keeps else None
        # Without pages or features there is nothing that could wait for a block.
        self._lazy = self._drafter_key is not None and drafter is not None and bool(drafter.tap_layer_ids)
        self._loft.clear()
        self._most_waiting = 0
        if drafter is not None and self._lazy:
            row = len(drafter.tap_layer_ids) * self.target.info.hidden_size * self.target.dtype.itemsize
            self._most_waiting = max(FLUSH_AT, LOFT_BYTES // row)

    def _copy(self, source: int, destination: int) -> None:
        self._loft.copy(source, destination)
        self._pages.copy(source, destination)
        if self._drafter_pages is not None and self.drafter is not None:
            self.drafter.copy_page(self._drafter_pages, source, destination)

    def open(self, sequence: Sequence) -> None:
        """Give a sequence memory, with what the prefix cache has of its tokens (all but the last at most)."""
        # Log-probabilities of a prompt are in no cache: its rows have to be computed.
        limit = 0 if sequence.request.lacks_prompt_logprobs else len(sequence.tokens) - 1
        opened = self.cache.open(sequence.tokens, limit=limit, drafter=self._drafter_key, or_without=True)
        if self._drafter_key is not None and opened.table.drafter != self._drafter_key:
            missing = opened.length - self.cache.reach(opened.table, self._drafter_key)
            if self.fills(missing, sequence.output_limit - sequence.output_length):
                self.cache.undo(opened, sequence.tokens)
                opened = self.cache.open(sequence.tokens, limit=limit, drafter=self._drafter_key)
        try:
            sequence.memory = self._memory(opened.table, opened.length)
        except BaseException:  # of a drafter that cannot take the sequence
            self._close_table(opened.table, sequence.tokens, opened.length, opened.drafter_length, True)
            raise

    def fork(self, leader: Sequence, sequence: Sequence) -> None:
        """Give a sequence the leader's memory, shared block by block until one of them writes."""
        source = leader.running_memory
        if not self._lazy:
            self.take_in([leader])
        memory = SequenceMemory(self.cache.fork(source.table), source.kv, None, source.draft_length)
        memory.kv = SequenceKV(self._pages, memory.table.blocks, source.kv.length)
        memory.indexed_blocks, memory.drafted = source.indexed_blocks, source.drafted
        if self.drafter is not None and source.drafted:
            gather(memory.waiting, source.waiting)
            memory.draft_state = self.drafter.new_state(
                self._drafter_pages, memory.table.blocks, source.draft_length
            )
        sequence.memory = memory

    def _memory(self, table: BlockTable, length: int) -> SequenceMemory:
        kv = SequenceKV(self._pages, table.blocks, length)
        memory = SequenceMemory(table, kv, None, length, indexed_blocks=length // KEY_BLOCK)
        memory.drafted = self.drafter is not None and table.drafter == self._drafter_key
        if self.drafter is not None and memory.drafted:
            if self._lazy:
                memory.draft_length, memory.waiting = self._fetched(table.blocks, length)
            memory.draft_state = self.drafter.new_state(
                self._drafter_pages, table.blocks, memory.draft_length
            )
        return memory

    def _fetched(self, blocks: list[int], length: int) -> tuple[int, list[KeptRows]]:
        """Of a cached prefix: how far the drafter's entries go, and the features that wait for the rest.

        Where entries follow behind some that are missing, the missing ones are made at once: a context only grows at its end.
        """
        start, waiting = length, list[KeptRows]()
        for first in range(0, length, KEY_BLOCK):
            pending = self._loft.find(blocks[first // KEY_BLOCK])
            end = min(length, first + KEY_BLOCK)
            held = min(end, pending.start) if pending is not None else end
            if waiting and held > first:
                self._make_entries([(list(blocks), Pending(start, tuple(waiting)))])
                start, waiting = length, []
            if pending is not None and held < end:
                start = start if waiting else held
                gather(waiting, cut(pending.pieces, 0, end - held))
        return start, waiting

    def _make_entries(self, late: Items[tuple[list[int], Pending]]) -> None:
        """Let the drafter make entries from features, in blocks by the tables given."""
        drafter = self.drafter
        assert drafter is not None
        updates = [
            ContextUpdate(
                drafter.new_state(self._drafter_pages, table, pending.start),
                _joined(pending.pieces),
                pending.start,
            )
            for table, pending in late
        ]
        started = time.perf_counter()
        with undisturbed(self.target.device):
            drafter.extend(updates)
        self.upkeep.tokens += sum(pending.count for _, pending in late)
        self.upkeep.seconds += time.perf_counter() - started

    def reserve(self, sequence: Sequence, rows: int) -> None:
        """Make the next `rows` positions writable.

        Raises:
            OutOfBlocks: not enough blocks; nothing has changed.
        """
        memory = sequence.running_memory
        start = memory.kv.length
        self.cache.reserve(memory.table, start, start + rows)

    def writable_room(self, sequence: Sequence) -> int:
        """Positions behind the committed ones that lie in blocks the sequence already has."""
        memory = sequence.running_memory
        return len(memory.table.blocks) * KEY_BLOCK - memory.kv.length

    def commit(self, kept: Items[tuple[Sequence, int, int]], output: TargetOutput) -> None:
        """After a pass: keep processed positions, forget those beyond.

        Args:
            kept: (sequence, its first row in the pass, how many of its rows to keep, from that one on).
            output: of the pass; its features are kept for the drafter.
        """
        for sequence, _, rows in kept:
            memory = sequence.running_memory
            kv = memory.kv
            kv.commit_to(kv.length + rows)
            if not memory.drafted:
                memory.draft_length = kv.length
            self.cache.trim(memory.table, kv.length)
        if self.drafter is not None and output.features is not None:
            _keep_features(kept, output)

    def settle(self, sequences: Items[Sequence], prompts: Items[Sequence], ended: Items[Sequence]) -> None:
        """After commits: let drafter contexts catch up where enough has gathered, and index the blocks that are full.

        Args:
            sequences: those that go on.
            prompts: those among them whose prompt was processed in this step: others may share it from the next one on.
            ended: those about to be closed; they are cheaper together than one by one.
        """
        if self._lazy:
            self._steps += 1
            if self._steps % LOOK_EVERY == 0 or prompts:
                self._look_after(sequences)
        elif self.drafter is not None:
            filled = [s for s in prompts if _has_new_block(s.running_memory)]
            gathered = [s for s in sequences if s.running_memory.waiting_length >= FLUSH_AT]
            self._try_to_take_in(list({id(s): s for s in (*filled, *gathered, *ended)}.values()))
        for sequence in sequences:
            memory = sequence.running_memory
            if (memory.kv.length if self._lazy else memory.draft_length) // KEY_BLOCK > memory.indexed_blocks:
                self._index(sequence, memory)

    def _look_after(self, sequences: Items[Sequence]) -> None:
        """See to it that not too many features wait, for running sequences or in the loft."""
        if self.idle:
            self._leave_undrafted(sequences)
        else:
            most = max(FLUSH_AT, self._most_waiting // max(1, len(sequences)))
            self._try_to_take_in([s for s in sequences if s.running_memory.waiting_length >= most])
        if self._loft.rows <= self._most_waiting:
            return
        late = self._loft.take_oldest(self._most_waiting // 2)
        if not self.idle:
            with suppress(Exception):
                tables = [[block] * (1 + pending.start // KEY_BLOCK) for block, pending in late]
                self._make_entries(list(zip(tables, (pending for _, pending in late), strict=True)))
                return
        for block, pending in late:
            self.cache.forget_drafter(block, pending.start % KEY_BLOCK)

    def _leave_undrafted(self, sequences: Items[Sequence]) -> None:
        """Of running sequences with more waiting features than may wait, leave out the longest; the others, one at least, can
        be tried."""
        waiting = [s.running_memory for s in sequences if s.running_memory.drafted]
        waiting.sort(key=lambda memory: memory.waiting_length)
        total = sum(memory.waiting_length for memory in waiting)
        while total > self._most_waiting and len(waiting) > 1:
            memory = waiting.pop()
            total -= memory.waiting_length
            memory.drafted, memory.draft_state, memory.table.drafter = False, None, None
            memory.draft_length = memory.kv.length
            memory.waiting.clear()

    def _try_to_take_in(self, sequences: Items[Sequence]) -> None:
        """A drafter that fails here fails nobody: outputs are whole without it, and what waits is tried again, and its failure
        reported, when drafting needs it."""
        if sequences:
            with suppress(Exception):
                self.take_in(sequences)

    def _index(self, sequence: Sequence, memory: SequenceMemory) -> None:
        """Blocks are indexed once both models' entries are at hand, so that a hit finds both."""
        drafted = memory.drafted and self._drafter_key is not None
        length = memory.kv.length if self._lazy else memory.draft_length
        self._leave(memory, length)
        self.cache.commit(
            memory.table,
            sequence.tokens,
            length,
            drafter=memory.table.drafter,
            drafter_length=length if drafted else 0,
        )
        memory.indexed_blocks = length // KEY_BLOCK

    def _leave(self, memory: SequenceMemory, length: int) -> None:
        """Leave in the loft what the drafter has not taken in of the first `length` positions, in memory of its own.

        Rows of a pass lie side by side, whosever they are, and one that is kept keeps hundreds, of sequences long ended.
        """
        if not self._lazy or not memory.drafted:
            return
        start = memory.draft_length
        if start >= length:
            return
        # From the first one to where the next block begins, block by block, to the last one.
        bounds = [start, *range((start // KEY_BLOCK + 1) * KEY_BLOCK, length, KEY_BLOCK), length]
        *shares, rest = split(memory.waiting, [end - at for at, end in pairwise((*bounds, memory.kv.length))])
        left: list[KeptRows] = []
        for (at, end), pieces in zip(pairwise(bounds), shares, strict=True):
            block = memory.table.blocks[at // KEY_BLOCK]
            pending = self._loft.find(block)
            # What a block that this one is a copy of had waiting may be of other tokens, and of as many.
            if pending is None or pending.start != at or not _same(pieces, pending.pieces):
                rows = torch.cat([piece.rows() for piece in pieces])
                pending = Pending(at, (KeptRows(rows, 0, end - at),))
                self._loft.put(block, pending)
            left += pending.pieces
        memory.waiting = [*left, *rest]

    def take_in(self, sequences: Items[Sequence]) -> None:
        """Let the drafter take in all waiting context of these sequences, in one batch."""
        if self.drafter is None:
            return
        late = [
            s.running_memory
            for s in sequences
            if s.running_memory.waiting_length > 0 and s.running_memory.drafted
        ]
        if not late:
            return
        started = time.perf_counter()
        with undisturbed(self.target.device):  # an abort comes from outside a step
            self.drafter.extend([_update(memory, bool(self.drafter.tap_layer_ids)) for memory in late])
        for memory in late:
            self.upkeep.tokens += memory.waiting_length
            if self._lazy:
                for block in memory.table.blocks[memory.draft_length // KEY_BLOCK :]:
                    self._loft.drop(block)
            memory.draft_length = memory.kv.length
            memory.waiting.clear()
        self.upkeep.seconds += time.perf_counter() - started

    def give_back(self, sequence: Sequence) -> None:
        """Undo `open`, before anything was computed. What it found stays in the cache, to be found again."""
        memory = sequence.running_memory
        sequence.memory = None
        length = memory.kv.length
        self._close_table(
            memory.table, sequence.tokens, length, length if self._lazy else memory.draft_length, True
        )

    def close(self, sequence: Sequence, keep: bool = True) -> None:
        """Give a sequence's blocks back; with `keep`, what they hold stays in the prefix cache until space is needed.

        Without `keep` nothing of it is trusted: its blocks are wiped as well, unless others share them.
        """
        memory = sequence.running_memory
        # A block may have been verified beyond the token that ended the output.
        length = min(memory.kv.length, len(sequence.tokens))
        if not keep:
            own = self.cache.exclusive_blocks(memory.table)
            self._pages.clear(own)
            for block in own:
                self._loft.drop(block)
        elif self._lazy:
            self._leave(memory, length)
        elif self._drafter_key is not None:
            self._try_to_take_in([sequence])
        sequence.memory = None
        drafted = length if self._lazy else min(length, memory.draft_length)
        self._close_table(memory.table, sequence.tokens, length, drafted, keep)

    def _close_table(
        self, table: BlockTable, tokens: Items[int], length: int, draft_length: int, keep: bool
    ) -> None:
        self.cache.close(
            table,
            tokens,
            length,
            drafter=table.drafter,
            drafter_length=draft_length if table.drafter else 0,
            keep=keep,
        )


def _keep_features(kept: Items[tuple[Sequence, int, int]], output: TargetOutput) -> None:
    """Note where the features of the kept rows lie.

    Whoever keeps one row keeps the tensor it lies in alive: fine for a few rows, too much for prompts and for the rejected
    drafts of many sequences. Of a large pass prompts get a copy of their own (but for one that is most of the pass), and all the
    others one together.
    """
    features = output.features
    assert features is not None
    if features.shape[0] <= FEW_ROWS:
        home, before = (
            (features, 0) if output.features_home is None else (output.features_home, output.features_from)
        )
        for sequence, first, rows in kept:
            if rows:
                _keep(sequence, home, before + first, rows)
        return
    together: list[int] = []
    for _, first, rows in kept:
        if rows <= FEW_ROWS:
            together += range(first, first + rows)
    shared = features[torch.tensor(together, device=features.device)] if together else features
    at = 0
    for sequence, first, rows in kept:
        if rows > FEW_ROWS and 2 * rows > features.shape[0]:
            _keep(sequence, features, first, rows)
        elif rows > FEW_ROWS:
            _keep(sequence, features[first : first + rows].clone(), 0, rows)
        elif rows:
            _keep(sequence, shared, at, rows)
            at += rows


def _keep(sequence: Sequence, features: torch.Tensor, first: int, rows: int) -> None:
    memory = sequence.running_memory
    waiting = memory.waiting
    if not memory.drafted:
        return
    if not waiting or not waiting[-1].goes_on(features, first, rows):
        waiting.append(KeptRows(features, first, rows))


def _same(some: Items[KeptRows], others: Items[KeptRows]) -> bool:
    """Whether both are the same rows of the same tensors."""
    return len(some) == len(others) and all(
        a.features is b.features and (a.first, a.count, a.step) == (b.first, b.count, b.step)
        for a, b in zip(some, others, strict=True)
    )


def _has_new_block(memory: SequenceMemory) -> bool:
    """Whether a block is full that the prefix index does not know of."""
    return memory.kv.length // KEY_BLOCK > memory.indexed_blocks


def _update(memory: SequenceMemory, tapped: bool) -> ContextUpdate:
    return ContextUpdate(memory.draft_state, _joined(memory.waiting) if tapped else None, memory.draft_length)


def _joined(pieces: Items[KeptRows]) -> torch.Tensor:
    """The rows of all pieces, ``[n, taps * hidden]``; of a single one not copied."""
    parts = [piece.rows() for piece in pieces]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
