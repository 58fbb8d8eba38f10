"""Who takes part in the next step, with how many tokens.

Continuous batching: sequences join and leave at every step. Those that decode always take part, one row each, so no prompt
however long stops a running output; the rest of the token budget goes to drafts (economics decides) and to prompt chunks. A few
prompts are processed at a time and share evenly, so that a short one does not wait for a long one before it. Sequences are
admitted in order of priority and arrival, and nobody is overtaken while waiting. Where blocks run out, whoever came last gives
its own back and is recomputed later.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass
from operator import attrgetter

from draftproof.cache import OutOfBlocks
from draftproof.engine.memory import KVMemory
from draftproof.engine.sequence import Sequence
from draftproof.models.kv import KEY_BLOCK

SHARE = 128
"""Prompt tokens a prompt gets per step at least, budget permitting: more prompts at once would mean smaller, costlier pieces."""

SHARE_OF_DRAFTS = 0.25
"""Of the token budget, at most, where somebody decodes and a drafter is there."""


@dataclass(eq=False, slots=True)
class Chunk:
    """Pending tokens of a sequence that are to be processed in a step.

    Attributes:
        sequence: running, with blocks reserved for the tokens.
        count: how many of its pending tokens, from the first on.
        last: whether none is left after them, so that a new token can be chosen.
        decodes: whether it goes on with an output: only the anchor is pending, and drafts may follow it.
    """

    sequence: Sequence
    count: int
    last: bool
    decodes: bool

    @staticmethod
    def of(sequence: Sequence, count: int) -> Chunk:
        """The first `count` pending tokens."""
        last = count == sequence.pending
        return Chunk(sequence, count, last, last and count == 1 and sequence.output_length > 0)


@dataclass(frozen=True)
class StepPlan:
    """What a step is to process. `room` is how many rows the token budget leaves for drafts; `refilled` whether somebody
    waits for the place of a sequence that ends."""

    chunks: list[Chunk]
    room: int
    refilled: bool = False


class Scheduler:
    """The queues and the plan.

    Args:
        memory: where blocks come from.
        max_num_seqs: most sequences running at once.
        max_num_batched_tokens: rows of a step, anchors aside: whoever decodes has its row in every step.
    """

    def __init__(self, memory: KVMemory, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.memory = memory
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.waiting: list[Sequence] = []  # kept in order
        self.running: list[Sequence] = []  # in order of admission
        self.preemptions = 0
        self._gave_way: set[int] = set()  # sequences preempted in the plan being made
        # Who did not fit last, and how many blocks there were to spare then.
        self._blocked: tuple[Sequence, int] | None = None

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def enqueue(self, sequence: Sequence) -> None:
        """Let a sequence without memory wait for its turn."""
        sequence.queued_since = time.perf_counter()
        bisect.insort(self.waiting, sequence, key=lambda one: one.order)

    def join(self, sequence: Sequence) -> None:
        """Let a sequence that has memory run from the next step on (a fork of a running one)."""
        self.running.append(sequence)

    def remove(self, sequence: Sequence, keep: bool = True) -> None:
        """Take a sequence out, wherever it is, and give its blocks back."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.memory is not None:
            self.memory.close(sequence, keep)

    def plan(self) -> StepPlan:
        """The next step; empty when there is nothing to do. Reserves the blocks its chunks need."""
        self._gave_way.clear()
        chunks = self._decoding_chunks()
        room = self.max_num_batched_tokens - len(chunks)
        if room <= 0:  # prompts go on all the same, if slowly
            room = min(KEY_BLOCK // 4, self.max_num_batched_tokens)
        filling = self._filling_chunks(room - self._kept_for_drafts(len(chunks), room))
        spent = sum(chunk.count for chunk in filling)
        if self._gave_way:
            chunks = [chunk for chunk in chunks if chunk.sequence.memory is not None]
        return StepPlan([*chunks, *filling], max(0, room - spent), bool(self.waiting))

    def _kept_for_drafts(self, decoding: int, room: int) -> int:
        """Rows that prompts leave to drafts, so that outputs go on fast while prompts are processed."""
        drafter = self.memory.drafter
        return min(decoding * drafter.max_draft_tokens, int(SHARE_OF_DRAFTS * room)) if drafter else 0

    def _decoding_chunks(self) -> list[Chunk]:
        chunks = []
        for sequence in _in_order([s for s in self.running if s.pending == 1]):
            if sequence.memory is not None and self._reserve(sequence, 1):
                chunks.append(Chunk(sequence, 1, True, sequence.output_length > 0))
        if not self._gave_way:
            return chunks
        # Someone served early may have had to give way to nobody, but someone later may have been preempted since.
        return [chunk for chunk in chunks if chunk.sequence.memory is not None]

    def _filling_chunks(self, room: int) -> list[Chunk]:
        """Prompt chunks within `room` rows: shared evenly, what short ones leave going to others and to newcomers."""
        queue = _in_order([s for s in self.running if s.pending > 1])
        if not queue and not self.waiting:
            return []
        chunks: list[Chunk] = []
        while room > 0:
            queue = [s for s in queue if s.memory is not None]  # the others have been preempted since
            at_once = max(1, room // SHARE)
            filling, queue = queue[:at_once], queue[at_once:]
            filling += self._admit(at_once - len(filling))
            if not filling:
                break
            for sequence, share in _fair_shares(filling, room):
                if sequence.memory is not None and self._reserve(sequence, share):
                    chunks.append(Chunk.of(sequence, share))
                    room -= share
        return [chunk for chunk in chunks if chunk.sequence.memory is not None]

    def _admit(self, most: int) -> list[Sequence]:
        """Let waiting sequences in, in order, while there are places, rows and blocks for all their tokens."""
        admitted: list[Sequence] = []
        while self.waiting and len(admitted) < most:
            first = self.waiting[0]
            if id(first) in self._gave_way:  # the plan may hold a chunk of it from before
                break
            if self.running and not self._has_place(first):
                break
            self.memory.open(first)
            if self.running and not self._fits(first):
                self.memory.give_back(first)
                self._blocked = (first, self._spare)
                break
            self._blocked = None
            self.waiting.pop(0)
            self.running.append(first)
            admitted.append(first)
            first.stats.seconds.queue += time.perf_counter() - first.queued_since
        return admitted

    def _has_place(self, sequence: Sequence) -> bool:
        """Whether it may come in as far as numbers go, and trying is not idle: since it last did not fit, blocks came free."""
        if self._places_taken() + _places(sequence) > self.max_num_seqs:
            return False
        return self._blocked is None or self._blocked[0] is not sequence or self._spare > self._blocked[1]

    @property
    def _spare(self) -> int:
        """Free blocks, less one to grow for everyone who runs."""
        return self.memory.cache.num_free - len(self.running)

    def _places_taken(self) -> int:
        return sum(_places(sequence) for sequence in self.running)

    def _fits(self, sequence: Sequence) -> bool:
        """Whether all its tokens find room now, with a block to grow for everyone who runs already."""
        memory = sequence.running_memory
        needed = self.memory.cache.blocks_needed(memory.table, len(sequence.tokens), memory.kv.length)
        return needed <= self._spare

    def _reserve(self, sequence: Sequence, rows: int) -> bool:
        """Blocks for the next `rows` positions; others that come later in order give way. False when it had to itself."""
        while True:
            try:
                self.memory.reserve(sequence, rows)
            except OutOfBlocks:
                victim = max(self.running, key=lambda one: one.order)
                self.preempt(victim)
                if victim is sequence:
                    return False
            else:
                return True

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's memory; its tokens stay, and it waits in its old place in the order."""
        self.running.remove(sequence)
        self._gave_way.add(id(sequence))
        self.memory.close(sequence)
        self.preemptions += 1
        sequence.stats.preemptions += 1
        self.enqueue(sequence)


def _in_order(sequences: list[Sequence]) -> list[Sequence]:
    return sorted(sequences, key=attrgetter("order")) if len(sequences) > 1 else sequences


def _places(sequence: Sequence) -> int:
    """Places a sequence takes or will take: a leader keeps those of the choices that fork from it."""
    if sequence.index == 0 and sequence.output_length == 0:
        return len(sequence.request.sequences)
    return 1


def _fair_shares(sequences: list[Sequence], room: int) -> list[tuple[Sequence, int]]:
    """Tokens for each: an even share, never more than pending; the rest to those who can use it, first come first."""
    shares = {id(sequence): 0 for sequence in sequences}
    open_ones = list(sequences)
    while room > 0 and open_ones:
        share = max(1, room // len(open_ones))
        for sequence in list(open_ones):
            give = min(share, sequence.pending - shares[id(sequence)], room)
            shares[id(sequence)] += give
            room -= give
            if shares[id(sequence)] == sequence.pending:
                open_ones.remove(sequence)
    return [(sequence, shares[id(sequence)]) for sequence in sequences if shares[id(sequence)] > 0]
