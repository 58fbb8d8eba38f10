"""Whether pool, index and tables agree with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from draftproof.cache.index import ROOT, PrefixIndex, content_key
from draftproof.cache.pool import BlockPool
from draftproof.cache.table import BlockTable


def audit(pool: BlockPool, index: PrefixIndex, tables: Collection[BlockTable], block_size: int) -> None:
    """Look at every block, entry and table.

    Raises:
        AssertionError: says what is wrong.
    """
    _audit_states(pool, index)
    _audit_tables(pool, index, tables, block_size)
    _audit_entries(pool, index, block_size)
    _audit_order(pool, index)


def _require(holds: bool, wrong: str) -> None:
    if not holds:
        raise AssertionError(wrong)


def _audit_states(pool: BlockPool, index: PrefixIndex) -> None:
    free = set(pool.free)
    _require(len(free) == len(pool.free), "a block is in the free list twice")
    for block, count in enumerate(pool.references):
        states = (count > 0) + (block in free) + (block in pool.idle)
        _require(states == 1 and count >= 0, f"block {block} is in {states} states, with {count} references")
        _require(not (block in free and block in index), f"block {block} is free and indexed")
        _require(block not in pool.idle or block in index, f"block {block} is idle without content")


def _audit_tables(
    pool: BlockPool, index: PrefixIndex, tables: Collection[BlockTable], block_size: int
) -> None:
    held = Counter(block for table in tables for block in table.blocks)
    for block, count in enumerate(pool.references):
        _require(held[block] == count, f"block {block}: {count} references, held by {held[block]} tables")
    for table in tables:
        _require(len(set(table.blocks)) == len(table.blocks), f"a table holds a block twice: {table.blocks}")
        _require(len(table.keys) <= len(table.blocks), "a table has more committed blocks than blocks")
        for block, parent, key in zip(table.blocks, [ROOT, *table.keys], [*table.keys, None], strict=False):
            entry = index.of_block(block)
            if entry is not None:  # as the whole, or still as the leading part that was taken over
                fits = key is None or entry.key == key or len(entry.tokens) < block_size
                _require(
                    fits and entry.parent == parent,
                    f"block {block} is indexed as what its table doesn't hold",
                )


def _audit_entries(pool: BlockPool, index: PrefixIndex, block_size: int) -> None:
    for entry in index:
        block = entry.block
        _require(0 <= block < pool.num_blocks, f"entry for block {block}, which doesn't exist")
        _require(index.of_block(block) is entry, f"block {block} has two entries")
        _require(1 <= len(entry.tokens) <= block_size, f"block {block} holds {len(entry.tokens)} tokens")
        _require(
            entry.key == content_key(entry.parent, entry.tokens), f"block {block} is under another's key"
        )
        _require(0 <= entry.drafter_length <= len(entry.tokens), f"block {block}: too many drafter entries")
        found, length = index.best(entry.parent, entry.tokens, None)
        _require(
            found is not None and length == len(entry.tokens), f"block {block} isn't found among siblings"
        )


def _audit_order(pool: BlockPool, index: PrefixIndex) -> None:
    """An idle block is evicted before its idle prefix, without which it can't be found."""
    place = {block: i for i, block in enumerate(pool.idle)}
    for block in pool.idle:
        entry = index.of_block(block)
        prefix = index.find(entry.parent) if entry is not None else None
        if prefix is not None and prefix.block in place:
            _require(
                place[block] < place[prefix.block],
                f"block {prefix.block} goes before {block}, which needs it",
            )
