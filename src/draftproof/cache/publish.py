"""What of a table's content enters the prefix index, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftproof.cache.index import Entry, PrefixIndex, content_key, last_key
from draftproof.cache.pool import BlockPool
from draftproof.cache.table import BlockTable


class Publisher:
    """Indexes the blocks of tables: full ones once they are committed, a partly filled one when its sequence ends.

    The same content is indexed once. The first block to have it stays, unless a later one holds more of its drafter's
    entries.

    Args:
        pool: where the blocks are from.
        index: where they are made known.
        block_size: positions in a block.
    """

    def __init__(self, pool: BlockPool, index: PrefixIndex, block_size: int) -> None:
        self._pool = pool
        self._index = index
        self._size = block_size

    def commit(self, table: BlockTable, tokens: Sequence[int], length: int, drafter_length: int) -> None:
        """Index the blocks that are full now, and record drafter entries that have come late.

        Time is proportional to the blocks that are new since the last call, for the target or for the drafter.
        """
        size, known, full = self._size, len(table.keys), length // self._size
        for place in range(known, full):
            chunk = tokens[place * size : (place + 1) * size]
            table.keys.append(content_key(last_key(table.keys), chunk))
        if drafter_length > table.drafter_length:
            late = range(min(table.drafter_length // size, known), min(-(-drafter_length // size), known))
        else:
            late = range(0)
        table.drafter_length = drafter_length
        self._offer_full(table, tokens, late)
        self._offer_full(table, tokens, range(known, full))

    def finish(self, table: BlockTable, tokens: Sequence[int], length: int) -> None:
        """After `commit`, as the sequence ends: index whatever of it isn't indexed."""
        full = length // self._size
        # Another block may have had the same content when this one became full, and may have been evicted since.
        lost = [place for place, key in enumerate(table.keys[:full]) if self._index.find(key) is None]
        self._offer_full(table, tokens, lost)
        tail = tuple(tokens[full * self._size : length])
        if tail:
            self._offer_tail(table, full, tail)

    def _offer_full(self, table: BlockTable, tokens: Sequence[int], places: Iterable[int]) -> None:
        for place in places:
            chunk = tuple(tokens[place * self._size : (place + 1) * self._size])
            self._offer(table, place, table.keys[place], chunk)

    def _offer_tail(self, table: BlockTable, place: int, tail: tuple[int, ...]) -> None:
        """Index the partly filled last block, unless an entry has all of it and as much of the drafter's."""
        parent = last_key(table.keys, place)
        entry, common = self._index.best(parent, tail, None)
        valid = self._drafter_part(table, place, len(tail))
        if entry is not None and common == len(tail) and (not valid or entry.valid(table.drafter) >= valid):
            self._pool.touch(entry.block)
        else:
            self._offer(table, place, content_key(parent, tail), tail)

    def _offer(self, table: BlockTable, place: int, key: bytes, tokens: tuple[int, ...]) -> None:
        """Index a block of the table, unless the same content is indexed already with as much of the drafter's."""
        block = table.blocks[place]
        valid = self._drafter_part(table, place, len(tokens))
        entry = self._index.find(key)
        if entry is None:
            self._add(Entry(key, last_key(table.keys, place), tokens, block, table.drafter, valid))
        elif valid and valid > entry.valid(table.drafter):
            if entry.block != block:
                self._move(entry, block)
            entry.drafter, entry.drafter_length = table.drafter, valid

    def _drafter_part(self, table: BlockTable, place: int, most: int) -> int:
        """Leading positions of one block of the table that hold its drafter's entries."""
        return min(max(table.drafter_length - place * self._size, 0), most)

    def _add(self, entry: Entry) -> None:
        """Index a block under new content, in place of the leading part of it that it may be indexed as."""
        before = self._index.of_block(entry.block)
        if before is not None:
            if before.drafter_length > entry.drafter_length:  # taken over by a sequence that doesn't draft
                entry.drafter, entry.drafter_length = before.drafter, before.drafter_length
            self._index.remove(entry.block)
        self._index.add(entry)

    def _move(self, entry: Entry, block: int) -> None:
        self._index.remove(block)
        self._pool.uncache(entry.block)
        self._index.move(entry, block)
