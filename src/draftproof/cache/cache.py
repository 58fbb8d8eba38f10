"""The block cache: gives sequences their blocks and remembers what the blocks of finished ones hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from draftproof.cache.audit import audit
from draftproof.cache.index import ROOT, PrefixIndex, content_key, last_key
from draftproof.cache.pool import BlockPool, OutOfBlocks
from draftproof.cache.publish import Publisher
from draftproof.cache.stats import CacheStats
from draftproof.cache.table import BlockTable


@dataclass(frozen=True)
class Opened:
    """A new sequence's table and what the cache had for it.

    Attributes:
        table: its blocks.
        length: leading positions whose target entries are in place.
        drafter_length: leading positions whose drafter entries are in place too: `length` where a drafter was asked
            for, 0 where none was.
    """

    table: BlockTable
    length: int
    drafter_length: int


class BlockCache:
    """Block tables over a pool of blocks, with a prefix cache by content.

    One table serves the target's entries and the drafter's. A block may be held by several tables; before one of them
    writes to positions the others can see, `reserve` gives it a copy of its own. Blocks that nobody holds but whose content
    is known stay, to be found by sequences that begin alike, and are evicted, least recently used first and a
    block before its prefix, when space is needed.

    Drafter entries of *committed* positions may be written without `reserve` at any time by a table opened for that
    drafter: they depend on the tokens alone, so everyone who holds the block would write the same, and nobody reads
    them before `commit` has reported them.

    Args:
        num_blocks: size of the pool.
        block_size: positions in a block.
        copy_block: called with (source, destination) to copy all that a block holds, both models'.
        block_taken: called with a block that is about to get new content: what is known of the old is void.
        prefix_caching: False: nothing is ever found or remembered.

    Attributes:
        stats: running totals.

    Raises:
        ValueError: by any method, when it is used against its contract (a closed table, lengths that don't fit together).
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 64,
        copy_block: Callable[[int, int], None],
        block_taken: Callable[[int], None] | None = None,
        prefix_caching: bool = True,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be positive, got {block_size}")
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.stats = CacheStats()
        self._copy_block = copy_block
        self._block_taken = block_taken
        self._pool = BlockPool(num_blocks)
        self._index = PrefixIndex()
        self._publisher = Publisher(self._pool, self._index, block_size)
        self._tables: set[BlockTable] = set()

    @property
    def num_blocks(self) -> int:
        """Size of the pool."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks to be had: free ones and those whose cached content would be given up."""
        return self._pool.available

    @property
    def num_referenced(self) -> int:
        """Blocks that open tables hold."""
        return self._pool.num_blocks - self._pool.available

    # ---- a sequence begins

    def open(
        self, tokens: Sequence[int], *, limit: int, drafter: str | None, or_without: bool = False
    ) -> Opened:
        """A table for a sequence, with the longest cached prefix in place.

        Whole blocks are shared. Of one further block the leading positions are taken over: as they are where nobody
        holds it and all of its content is wanted, else by a copy; where no block can be had for a copy, they are left out.
        Time is proportional to the tokens.

        Args:
            tokens: the sequence's tokens from position 0.
            limit: most positions to restore; ``len(tokens) - 1`` leaves one to compute.
            drafter: key of the drafter whose entries are wanted as well: the prefix ends where they do. None: the
                target's alone count.
            or_without: rather than end the prefix where the drafter's entries do, leave the drafter out: the table is then
                for none (its `drafter` is None). Where the drafter's go as far as the target's nothing is different.
        """
        table = BlockTable(drafter=None if or_without else drafter)
        self._tables.add(table)
        if not self.prefix_caching:
            table.drafter = drafter
            return Opened(table, 0, 0)
        limit = max(min(limit, len(tokens)), 0)
        length, whole = self._share_whole(table, tokens, limit, drafter)
        try:
            rest = tuple(tokens[length : min(length + self.block_size, limit)])
            more, also = self._take_part(table, rest, drafter)
        except BaseException:
            self._close(table)
            raise
        length += more
        table.drafter = drafter if whole and also == more else table.drafter
        table.drafter_length = 0 if table.drafter is None else length
        self.stats.lookups += 1
        self.stats.asked_tokens += len(tokens)
        self.stats.hit_tokens += length
        self.stats.drafter_hit_tokens += table.drafter_length
        return Opened(table, length, table.drafter_length)

    def undo(self, opened: Opened, tokens: Sequence[int]) -> None:
        """Give back what `open` found for these tokens, as if nobody had asked."""
        self.stats.lookups -= 1
        self.stats.asked_tokens -= len(tokens)
        self.stats.hit_tokens -= opened.length
        self.stats.drafter_hit_tokens -= opened.drafter_length
        self._close(opened.table)

    def reach(self, table: BlockTable, drafter: str) -> int:
        """Leading positions of a table's cached blocks that hold a drafter's entries without a gap."""
        reached = 0
        for block in table.blocks:
            entry = self._index.of_block(block)
            valid = 0 if entry is None else entry.valid(drafter)
            reached += valid
            if valid < self.block_size:
                break
        return reached

    def _share_whole(
        self, table: BlockTable, tokens: Sequence[int], limit: int, drafter: str | None
    ) -> tuple[int, bool]:
        """Positions shared, and whether all of them hold this drafter's entries too."""
        size, whole = self.block_size, True
        key = ROOT
        for end in range(size, limit + 1, size):
            key = content_key(key, tokens[end - size : end])
            entry = self._index.find(key)
            if entry is None or entry.valid(table.drafter) < size:
                break
            whole = whole and entry.valid(drafter) == size
            self._pool.share(entry.block)
            table.blocks.append(entry.block)
            table.keys.append(key)
        return len(table.blocks) * size, whole

    def _take_part(self, table: BlockTable, tokens: tuple[int, ...], drafter: str | None) -> tuple[int, int]:
        """Positions taken over of one more block, and how many of them hold this drafter's entries too."""
        entry, length = self._index.best(last_key(table.keys), tokens, table.drafter)
        if entry is None:
            return 0, 0
        also = min(length, entry.valid(drafter))
        source = entry.block
        unheld = self._pool.references[source] == 0
        self._pool.share(source)  # or it might be evicted to make room for its own copy
        if unheld and length == len(entry.tokens):
            table.blocks.append(source)  # writing goes on behind what is indexed, which stays true
        elif self._pool.available:
            try:
                table.blocks.append(self._copy(source))
            finally:
                self._drop(source)
        elif unheld:
            self._index.remove(source)  # the copy would have to go where the original is
            table.blocks.append(source)
        else:
            self._drop(source)
            return 0, 0
        return length, also

    def fork(self, table: BlockTable) -> BlockTable:
        """A second table over the same blocks; whichever writes first to a shared one gets a copy."""
        self._require_open(table)
        for block in table.blocks:
            self._pool.share(block)
        twin = table.copied()
        self._tables.add(twin)
        return twin

    # ---- a sequence grows

    def blocks_needed(self, table: BlockTable, end: int, start: int) -> int:
        """How many blocks ``reserve(table, start, end)`` would take."""
        shared, added = self._plan(table, start, end)
        return len(shared) + added

    def reserve(self, table: BlockTable, start: int, end: int) -> None:
        """Make positions ``[start, end)`` the table's own to write: adds blocks, copies those that others can see.

        All or nothing. Time is proportional to the blocks in the range.

        Raises:
            OutOfBlocks: it takes more blocks than are free or evictable; nothing has changed.
        """
        self._require_open(table)
        if self._is_own(table, start, end):
            return
        shared, added = self._plan(table, start, end)
        needed = len(shared) + added
        if needed > self._pool.available:
            raise OutOfBlocks(
                f"{needed} blocks needed, {self._pool.available} of {self.num_blocks} to be had"
            )
        for place in shared:
            block = table.blocks[place]
            table.blocks[place] = self._copy(block)
            self._drop(block, table.keys)
        table.blocks.extend(self._take() for _ in range(added))

    def _is_own(self, table: BlockTable, start: int, end: int) -> bool:
        """Whether the positions lie in one block that nobody else holds or can find: the common case, looked at first."""
        place = start // self.block_size
        if not 0 <= start < end <= (place + 1) * self.block_size or place >= len(table.blocks):
            return False
        block = table.blocks[place]
        return self._pool.references[block] == 1 and self._index.of_block(block) is None

    def _plan(self, table: BlockTable, start: int, end: int) -> tuple[list[int], int]:
        """Places in the table whose blocks must be copied, and the number of blocks to add."""
        if not 0 <= start <= end:
            raise ValueError(f"not a range of positions: {start} to {end}")
        if start == end:
            return [], 0
        size, held = self.block_size, len(table.blocks)
        first, last = start // size, -(-end // size)
        shared = [
            place
            for place in range(first, min(last, held))
            if self._is_shared(table.blocks[place], max(start - place * size, 0))
        ]
        return shared, max(last - held, 0)

    def _is_shared(self, block: int, offset: int) -> bool:
        """Whether anyone else may read what the block holds from `offset` on."""
        entry = self._index.of_block(block)
        return self._pool.references[block] > 1 or (entry is not None and offset < len(entry.tokens))

    def commit(
        self,
        table: BlockTable,
        tokens: Sequence[int],
        length: int,
        *,
        drafter: str | None,
        drafter_length: int,
    ) -> None:
        """The first `length` positions hold the entries of ``tokens[:length]`` for good: index the full blocks among them.

        Time is proportional to the blocks that are new since the last call, for the target or for the drafter.

        Args:
            table: the sequence's.
            tokens: at least `length`, from position 0.
            length: committed positions.
            drafter: key of the drafter whose entries the table holds, the one it was opened for; None: of none.
            drafter_length: leading positions for which they are valid.
        """
        self._require_valid(table, tokens, length, drafter, drafter_length)
        if self.prefix_caching:
            self._publisher.commit(table, tokens, length, drafter_length)

    def trim(self, table: BlockTable, length: int) -> None:
        """Give back the blocks wholly beyond the first `length` positions."""
        self._require_open(table)
        if length < 0:
            raise ValueError(f"length must not be negative, got {length}")
        keep, full = -(-length // self.block_size), length // self.block_size
        if len(table.blocks) > keep and self._release(table, keep):
            self._touch(table.keys)
        if len(table.keys) > full:
            del table.keys[full:]
        if table.drafter_length > length:
            table.drafter_length = length

    def forget_drafter(self, block: int, length: int) -> None:
        """Of a cached block only the first `length` positions hold the drafter's entries from now on."""
        entry = self._index.of_block(block)
        if entry is not None:
            entry.drafter_length = min(entry.drafter_length, length)

    # ---- a sequence ends

    def close(
        self,
        table: BlockTable,
        tokens: Sequence[int],
        length: int,
        *,
        drafter: str | None,
        drafter_length: int,
        keep: bool = True,
    ) -> None:
        """Give all blocks back: the sequence is finished, aborted or preempted.

        With `keep`, its committed content can be found from now on, the partly filled last block included. Without, nothing
        that this table alone holds (`exclusive_blocks`) is trusted: those blocks leave the index and are free.
        Other arguments as for `commit`. Time is proportional to the blocks.

        Raises:
            ValueError: the table is closed already.
        """
        self._require_open(table)
        if keep:
            self.commit(table, tokens, length, drafter=drafter, drafter_length=drafter_length)
            if self.prefix_caching:
                self._publisher.finish(table, tokens, length)
        else:
            for block in self.exclusive_blocks(table):
                self._index.remove(block)
        self._close(table)

    def exclusive_blocks(self, table: BlockTable) -> list[int]:
        """The blocks that no other table holds; what ``close(keep=False)`` frees."""
        self._require_open(table)
        return [block for block in table.blocks if self._pool.references[block] == 1]

    def _close(self, table: BlockTable) -> None:
        self._release(table, 0)
        self._touch(table.keys)
        self._tables.remove(table)

    # ---- blocks

    def _release(self, table: BlockTable, keep: int) -> bool:
        """Drop all blocks of a table but the first `keep`; whether any is idle now.

        The last goes first, so that it is evicted before its prefix.
        """
        idle = False
        while len(table.blocks) > keep:
            block = table.blocks.pop()
            idle |= self._pool.drop(block, block in self._index)
        return idle

    def _drop(self, block: int, prefix: Sequence[bytes] = ()) -> None:
        if self._pool.drop(block, block in self._index):
            self._touch(prefix)

    def _touch(self, keys: Sequence[bytes]) -> None:
        """What holds a prefix in use is in use too, also where it isn't the table's own block, but one of like content."""
        for key in reversed(keys):
            entry = self._index.find(key)
            if entry is not None:
                self._pool.touch(entry.block)

    def _take(self) -> int:
        block, evicted = self._pool.take()
        if evicted:
            self._index.remove(block)
            self.stats.evictions += 1
        if self._block_taken is not None:
            self._block_taken(block)
        return block

    def _copy(self, source: int) -> int:
        block = self._take()
        try:
            self._copy_block(source, block)
        except BaseException:
            self._drop(block)
            raise
        self.stats.copies += 1
        return block

    # ---- contract

    def _require_open(self, table: BlockTable) -> None:
        if table not in self._tables:
            raise ValueError("the table is closed, or belongs to another cache")

    def _require_valid(
        self, table: BlockTable, tokens: Sequence[int], length: int, drafter: str | None, drafter_length: int
    ) -> None:
        self._require_open(table)
        if not 0 <= length <= min(len(tokens), len(table.blocks) * self.block_size):
            raise ValueError(
                f"{length} positions committed, with {len(tokens)} tokens and {len(table.blocks)} blocks"
            )
        if not 0 <= drafter_length <= length:
            raise ValueError(
                f"drafter_length must be between 0 and {length}, the committed positions; got {drafter_length}"
            )
        if drafter_length and drafter != table.drafter:
            raise ValueError(f"the table was opened for drafter {table.drafter!r}, not for {drafter!r}")

    def check(self, tables: Iterable[BlockTable] | None = None) -> None:
        """Audit everything; for tests and soak runs. Time is proportional to the pool.

        Args:
            tables: the tables that the caller believes to be open; None: not compared.

        Raises:
            AssertionError: says what is wrong.
        """
        if tables is not None and set(tables) != self._tables:
            raise AssertionError(f"{len(self._tables)} tables are open, not the {len(set(tables))} expected")
        audit(self._pool, self._index, self._tables, self.block_size)
