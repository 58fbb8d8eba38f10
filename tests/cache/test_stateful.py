"""Random sequences on a tiny pool, against a memory that knows what each entry ought to be.

An entry is modelled by all the tokens it depends on: the entry of position p is the tuple of tokens 0 .. p. So a wrong share,
a lost copy, a stale hit or a write to a shared block shows as an entry of other tokens than the sequence's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from draftproof.cache import BlockCache, BlockTable, OutOfBlocks
from draftproof.cache.index import ROOT, content_key

SIZE = 4
GARBAGE = ("rejected",)
TOKENS = st.integers(0, 1)
DRAFTERS = st.sampled_from(["a", "a", "b", None])


@dataclass
class Page:
    """What a block of memory holds: for each position the target's entry and the drafter's."""

    target: list[object] = field(default_factory=lambda: [None] * SIZE)
    drafter: list[object] = field(default_factory=lambda: [None] * SIZE)


@dataclass(eq=False)
class Running:
    """A sequence as the engine sees it."""

    tokens: list[int]
    table: BlockTable
    blocks: list[int]
    length: int
    drafter: str | None
    drafter_length: int


class CacheMachine(RuleBasedStateMachine):
    """Opens, writes, rejects, commits, forks and closes sequences; all entries must stay the sequences' own."""

    prefix_caching = True

    @initialize(num_blocks=st.integers(3, 14))
    def begin(self, num_blocks: int) -> None:
        self.pages = [Page() for _ in range(num_blocks)]
        self.cache = BlockCache(
            num_blocks, block_size=SIZE, copy_block=self.copy, prefix_caching=self.prefix_caching
        )
        self.running: list[Running] = []
        self.said: list[list[int]] = []

    def copy(self, source: int, destination: int) -> None:
        assert source != destination
        page = self.pages[source]
        self.pages[destination] = Page(list(page.target), list(page.drafter))

    # ---- what an engine does

    def write(self, one: Running, start: int, tokens: list[int]) -> None:
        """A forward pass of the target over the tokens from `start` on."""
        for p, _ in enumerate(tokens, start):
            page = self.pages[one.blocks[p // SIZE]]
            page.target[p % SIZE] = (*one.tokens[:start], *tokens[: p - start + 1])

    def extend(self, one: Running, end: int) -> None:
        """The drafter takes in the context up to `end`; its entries need no reserve."""
        for p in range(one.drafter_length, end):
            page = self.pages[one.blocks[p // SIZE]]
            page.drafter[p % SIZE] = (one.drafter, *one.tokens[: p + 1])
        one.drafter_length = end

    def commit(self, one: Running) -> None:
        self.cache.commit(
            one.table, one.tokens, one.length, drafter=one.drafter, drafter_length=one.drafter_length
        )

    def close(self, one: Running, keep: bool = True) -> None:
        self.running.remove(one)
        self.cache.close(
            one.table,
            one.tokens,
            one.length,
            drafter=one.drafter,
            drafter_length=one.drafter_length,
            keep=keep,
        )
        assert one.blocks == []

    def pick(self, which: int) -> Running:
        return self.running[which % len(self.running)]

    # ---- rules

    @rule(
        data=st.data(),
        fresh=st.lists(TOKENS, min_size=1, max_size=10),
        drafter=DRAFTERS,
        spare=st.integers(0, 2),
    )
    def open(self, data: st.DataObject, fresh: list[int], drafter: str | None, spare: int) -> None:
        tokens = list(fresh)
        if self.said:  # often the next turn of a conversation
            before = data.draw(st.sampled_from(self.said))
            tokens = before[: data.draw(st.integers(0, len(before)))] + tokens
        limit = max(len(tokens) - 1 - spare, 0)
        opened = self.cache.open(tokens, limit=limit, drafter=drafter)
        assert opened.length <= limit
        assert opened.drafter_length == (0 if drafter is None else opened.length)
        table = opened.table
        self.running.append(
            Running(tokens, table, table.blocks, opened.length, drafter, opened.drafter_length)
        )

    @precondition(lambda self: self.running)
    @rule(
        which=st.integers(0, 99),
        accepted=st.lists(TOKENS, min_size=1, max_size=6),
        rejected=st.integers(0, 5),
        commits=st.booleans(),
    )
    def step(self, which: int, accepted: list[int], rejected: int, commits: bool) -> None:
        """What the prompt still lacks, or new tokens; with drafts behind that are rejected."""
        one = self.pick(which)
        rest = one.tokens[one.length :]
        accepted = rest[: len(accepted)] or accepted
        start, end = one.length, one.length + len(accepted) + rejected
        before = (list(one.blocks), self.cache.num_free)
        needed = self.cache.blocks_needed(one.table, end, start)
        try:
            self.cache.reserve(one.table, start, end)
        except OutOfBlocks:
            assert needed > self.cache.num_free
            assert before == (one.blocks, self.cache.num_free)
            return
        assert 0 <= before[1] - self.cache.num_free <= needed  # a copied block's source may become evictable
        self.write(one, start, accepted + [9] * rejected)
        one.length += len(accepted)
        one.tokens = one.tokens[:start] + accepted + one.tokens[one.length :]
        for p in range(one.length, end):
            self.pages[one.blocks[p // SIZE]].target[p % SIZE] = GARBAGE
        self.cache.trim(one.table, one.length)
        assert len(one.blocks) == -(-one.length // SIZE)
        if commits:
            self.commit(one)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), part=st.integers(0, 8), commits=st.booleans())
    def draft(self, which: int, part: int, commits: bool) -> None:
        """The drafter catches up, in part or wholly."""
        one = self.pick(which)
        if one.drafter is not None:
            self.extend(one, min(one.drafter_length + part, one.length))
        if commits:
            self.commit(one)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), back=st.integers(1, 6))
    def go_back(self, which: int, back: int) -> None:
        """Committed positions are forgotten again and will be written with other tokens."""
        one = self.pick(which)
        one.length = max(one.length - back, 0)
        one.drafter_length = min(one.drafter_length, one.length)
        one.tokens = one.tokens[: one.length]
        self.cache.trim(one.table, one.length)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def fork(self, which: int) -> None:
        one = self.pick(which)
        table = self.cache.fork(one.table)
        assert table.blocks == one.blocks
        assert table.blocks is not one.blocks
        self.running.append(
            Running(list(one.tokens), table, table.blocks, one.length, one.drafter, one.drafter_length)
        )

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def finish(self, which: int) -> None:
        one = self.pick(which)
        self.said.append(one.tokens)
        self.close(one)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def distrust(self, which: int) -> None:
        """A request that failed: what it alone holds is wiped and must never be found."""
        one = self.pick(which)
        for block in self.cache.exclusive_blocks(one.table):
            self.pages[block] = Page()
        self.close(one, keep=False)

    # ---- what must hold

    @invariant()
    def entries_are_the_sequences_own(self) -> None:
        for one in getattr(self, "running", []):
            assert one.table.blocks is one.blocks
            for p in range(one.length):
                page = self.pages[one.blocks[p // SIZE]]
                assert page.target[p % SIZE] == tuple(one.tokens[: p + 1])
                if p < one.drafter_length:
                    assert page.drafter[p % SIZE] == (one.drafter, *one.tokens[: p + 1])

    @invariant()
    def cached_blocks_hold_what_they_are_known_for(self) -> None:
        for entry in self.cache._index if hasattr(self, "cache") else ():
            page, count = self.pages[entry.block], len(entry.tokens)
            text = page.target[count - 1]
            assert isinstance(text, tuple)
            prefix = len(text) - count
            key = ROOT
            for start in range(0, prefix, SIZE):
                key = content_key(key, text[start : start + SIZE])
            assert (key, entry.tokens) == (entry.parent, text[prefix:])
            for i in range(count):
                assert page.target[i] == text[: prefix + i + 1]
                if i < entry.drafter_length:
                    assert page.drafter[i] == (entry.drafter, *text[: prefix + i + 1])

    @invariant()
    def bookkeeping_agrees(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check([one.table for one in self.running])
            assert self.cache.num_free + self.cache.num_referenced == self.cache.num_blocks

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for one in list(self.running):
                self.close(one)
            self.cache.check([])
            assert self.cache.num_referenced == 0
            assert self.cache.num_free == self.cache.num_blocks


class UncachedMachine(CacheMachine):
    """The same without the prefix cache; nothing may ever be found."""

    prefix_caching = False

    @invariant()
    def nothing_is_found(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.stats.hit_tokens == 0


@pytest.mark.parametrize(("machine", "examples"), [(CacheMachine, 250), (UncachedMachine, 40)])
def test_random_sequences(machine: type[CacheMachine], examples: int) -> None:
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
