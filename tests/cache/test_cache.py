"""The rules of the block cache, one by one, on blocks of four positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from draftproof.cache import BlockCache, BlockTable, Opened, OutOfBlocks

SIZE = 4
PROMPT = list(range(10, 20))  # two full blocks and half of a third


class Recorded(BlockCache):
    """A cache that keeps a list of the copies it asked for."""

    def __init__(self, num_blocks: int, **options: bool) -> None:
        self.copied: list[tuple[int, int]] = []
        super().__init__(
            num_blocks, block_size=SIZE, copy_block=lambda a, b: self.copied.append((a, b)), **options
        )


def opened(cache: BlockCache, tokens: Sequence[int], drafter: str | None = None) -> Opened:
    """A sequence whose tokens are all wanted but the last."""
    return cache.open(tokens, limit=len(tokens) - 1, drafter=drafter)


def filled(
    cache: BlockCache, tokens: Sequence[int], drafter: str | None = None, drafted: int | None = None
) -> BlockTable:
    """A sequence with all of its tokens processed and committed."""
    found = opened(cache, tokens, drafter)
    table = found.table
    cache.reserve(table, found.length, len(tokens))
    cache.commit(
        table, tokens, len(tokens), drafter=drafter, drafter_length=_drafted(tokens, drafter, drafted)
    )
    cache.check()
    return table


def finish(
    cache: BlockCache,
    table: BlockTable,
    tokens: Sequence[int],
    drafter: str | None = None,
    drafted: int | None = None,
    keep: bool = True,
) -> None:
    """The sequence ends with all of its tokens committed."""
    drafted = _drafted(tokens, drafter, drafted)
    cache.close(table, tokens, len(tokens), drafter=drafter, drafter_length=drafted, keep=keep)
    cache.check()


def remember(
    cache: BlockCache, tokens: Sequence[int], drafter: str | None = None, drafted: int | None = None
) -> None:
    """A sequence has been and gone."""
    finish(cache, filled(cache, tokens, drafter, drafted), tokens, drafter, drafted)


def _drafted(tokens: Sequence[int], drafter: str | None, drafted: int | None) -> int:
    if drafter is None:
        return 0
    return len(tokens) if drafted is None else drafted


def hit(cache: BlockCache, tokens: Sequence[int], drafter: str | None = None) -> int:
    """How much of the tokens would be restored; the sequence leaves no trace but in the order of eviction."""
    found = opened(cache, tokens, drafter)
    cache.check()
    cache.close(found.table, tokens, found.length, drafter=drafter, drafter_length=found.drafter_length)
    cache.check()
    return found.length


# ---- what is found


def test_a_second_turn_has_all_of_the_first_but_new_tokens() -> None:
    cache = Recorded(16)
    remember(cache, PROMPT, "d")
    second = opened(cache, [*PROMPT, 1, 2, 3], "d")
    assert (second.length, second.drafter_length) == (10, 10)
    assert cache.copied == []  # nobody held the last block, so it's taken over as it is
    assert cache.num_referenced == 3


def test_one_token_is_left_to_compute() -> None:
    cache = Recorded(16)
    remember(cache, PROMPT[:8])
    assert hit(cache, PROMPT[:8]) == 7
    assert hit(cache, PROMPT[:9]) == 8
    assert cache.open(PROMPT, limit=0, drafter=None).length == 0
    assert cache.open(PROMPT, limit=-1, drafter=None).length == 0
    assert cache.open([], limit=-1, drafter=None).length == 0


def test_full_blocks_are_found_while_their_sequence_runs_and_the_partial_one_when_it_ends() -> None:
    cache = Recorded(16)
    table = filled(cache, PROMPT)
    assert hit(cache, [*PROMPT, 1]) == 8
    finish(cache, table, PROMPT)
    assert hit(cache, [*PROMPT, 1]) == 10


def test_the_leading_tokens_of_a_block_are_copied_from_the_best_match() -> None:
    cache = Recorded(16)
    for last in ([5, 6, 7, 8], [5, 6, 1, 2], [4, 6, 7, 8], [6, 6, 7, 8]):
        remember(cache, [*PROMPT[:4], *last])
    source = cache._index.best(cache._index.of_block(0).key, (5, 6, 7, 8), None)[0].block
    found = opened(cache, [*PROMPT[:4], 5, 6, 7, 9, 9])
    assert found.length == 7
    assert cache.copied[-1] == (source, found.table.blocks[1])
    cache.check()


@pytest.mark.parametrize("last", [[1, 1, 9, 9], [3, 1, 9, 9], [2, 2, 0, 9], [2, 2, 9, 9]])
def test_the_best_match_is_found_on_either_side(last: list[int]) -> None:
    cache = Recorded(32)
    cached = [[1, 1, 1, 1], [2, 2, 0, 1], [2, 2, 5, 5], [3, 1, 1, 1]]
    for block in cached:
        remember(cache, block)
    best = max(next((i for i in range(4) if block[i] != last[i]), 4) for block in cached)
    assert hit(cache, [*last, 0]) == best


def test_the_same_tokens_after_another_prefix_are_not_found() -> None:
    cache = Recorded(16)
    remember(cache, PROMPT[:8])
    assert hit(cache, [*PROMPT[4:8], 1]) == 0
    assert hit(cache, [0, *PROMPT[1:9]]) == 0


def test_without_prefix_caching_nothing_is_found_or_kept() -> None:
    cache = Recorded(16, prefix_caching=False)
    remember(cache, PROMPT)
    assert hit(cache, PROMPT) == 0
    assert len(cache._index) == 0
    assert len(cache._pool.free) == 16


def test_what_is_not_to_be_kept_leaves_the_index_unless_others_hold_it() -> None:
    cache = Recorded(16)
    table = filled(cache, PROMPT)
    other = opened(cache, [*PROMPT[:4], 9, 9])  # shares the first block
    assert other.length == 4
    assert cache.exclusive_blocks(table) == table.blocks[1:]
    finish(cache, table, PROMPT, keep=False)
    assert hit(cache, PROMPT) == 4


def test_a_blocked_copy_settles_for_whole_blocks() -> None:
    cache = Recorded(3)
    table = filled(cache, PROMPT[:8])
    other = filled(cache, [1])
    assert cache.num_free == 0
    assert opened(cache, PROMPT[:8]).length == 4
    cache.check()
    assert len({*table.blocks, *other.blocks}) == 3


def test_a_block_that_nobody_holds_is_used_itself_when_there_is_none_for_its_copy() -> None:
    cache = Recorded(2)
    remember(cache, PROMPT[:4])
    filled(cache, [1])
    found = opened(cache, [*PROMPT[:3], 1, 1])
    assert found.length == 3
    assert cache.copied == []
    cache.check()
    assert len(cache._index) == 0  # its content is about to be overwritten


def test_the_source_of_a_copy_is_not_evicted_for_it() -> None:
    cache = Recorded(2)
    remember(cache, PROMPT[:4])
    remember(cache, [1, 2, 3, 4])  # used later: the other is the one to go first
    source = cache._index.best(b"", tuple(PROMPT[:4]), None)[0].block
    found = opened(cache, [*PROMPT[:3], 1, 1])
    assert found.length == 3
    assert cache.copied == [(source, found.table.blocks[0])]
    assert hit(cache, PROMPT[:5]) == 4  # the original is still there


# ---- whose drafter entries


def test_a_hit_ends_where_the_drafters_entries_do() -> None:
    cache = Recorded(16)
    remember(cache, PROMPT, "d", drafted=6)
    assert hit(cache, [*PROMPT, 1], "d") == 6
    assert hit(cache, [*PROMPT, 1], "other") == 0
    found = opened(cache, [*PROMPT, 1], None)
    assert (found.length, found.drafter_length) == (10, 0)


def test_drafter_entries_that_come_late_are_recorded() -> None:
    cache = Recorded(16)
    table = filled(cache, PROMPT, "d", drafted=1)
    assert hit(cache, [*PROMPT, 1], "d") == 1
    cache.commit(table, PROMPT, 10, drafter="d", drafter_length=6)
    assert hit(cache, [*PROMPT, 1], "d") == 6
    cache.commit(table, PROMPT, 10, drafter="d", drafter_length=10)
    assert hit(cache, [*PROMPT, 1], "d") == 8
    finish(cache, table, PROMPT, "d")
    assert hit(cache, [*PROMPT, 1], "d") == 10


@pytest.mark.parametrize("first_stays", [True, False])
def test_the_same_content_with_drafter_entries_takes_the_place_of_that_without(first_stays: bool) -> None:
    cache = Recorded(16)
    first = filled(cache, PROMPT)
    if not first_stays:
        finish(cache, first, PROMPT)
    second = filled(cache, PROMPT, "d")
    assert hit(cache, [*PROMPT, 1], "d") == 8
    finish(cache, second, PROMPT, "d")
    assert hit(cache, [*PROMPT, 1], "d") == 10
    assert hit(cache, [*PROMPT, 1]) == 10
    if first_stays:
        finish(cache, first, PROMPT)
    assert hit(cache, [*PROMPT, 1], "d") == 10
    assert cache.num_referenced == 0


def test_the_same_content_again_changes_nothing() -> None:
    cache = Recorded(16)
    first = filled(cache, PROMPT, "d")
    entries = {entry.block for entry in cache._index}
    twin = cache.open(PROMPT, limit=0, drafter="d").table
    cache.reserve(twin, 0, 10)
    cache.commit(twin, PROMPT, 10, drafter="d", drafter_length=10)
    assert {entry.block for entry in cache._index} == entries
    finish(cache, first, PROMPT, "d")
    finish(cache, twin, PROMPT, "d")
    assert len(cache._index) == 3  # the second partial block wasn't kept beside the first
    assert len(cache._pool.free) == 13


def test_a_partial_block_is_not_kept_beside_one_that_has_all_of_it() -> None:
    cache = Recorded(16)
    remember(cache, PROMPT, "d")
    for drafter in ("d", None):
        table = cache.open(PROMPT, limit=8, drafter=drafter).table
        cache.reserve(table, 8, 9)
        finish(cache, table, PROMPT[:9], drafter)
    assert len(cache._index) == 3


def test_content_computed_again_counts_as_used() -> None:
    cache = Recorded(16)
    remember(cache, [1, 2, 3])
    remember(cache, [7, 8, 9])
    table = cache.open([1, 2], limit=0, drafter=None).table
    cache.reserve(table, 0, 2)
    finish(cache, table, [1, 2])
    assert list(cache._pool.idle) == [1, 0]


def test_a_sequence_that_does_not_draft_keeps_the_record_of_what_it_took_over() -> None:
    cache = Recorded(16)
    remember(cache, PROMPT[:6], "d")
    table = opened(cache, PROMPT).table
    assert cache.copied == []
    cache.reserve(table, 6, 10)
    cache.commit(table, PROMPT, 8, drafter=None, drafter_length=0)
    assert hit(cache, PROMPT) == 8
    assert hit(cache, PROMPT, "d") == 6


def test_a_table_keeps_its_drafter() -> None:
    cache = Recorded(16)
    table = opened(cache, PROMPT).table
    cache.reserve(table, 0, 10)
    with pytest.raises(ValueError, match="opened for drafter None, not for 'd'"):
        cache.commit(table, PROMPT, 10, drafter="d", drafter_length=10)


# ---- writing


def test_a_fork_copies_the_shared_block_it_writes_and_only_that() -> None:
    cache = Recorded(16)
    table = filled(cache, PROMPT)
    twin = cache.fork(table)
    assert twin.blocks == table.blocks
    assert cache.num_referenced == 3
    before = table.blocks
    cache.reserve(twin, 10, 11)
    assert cache.copied == [(before[2], twin.blocks[2])]
    assert twin.blocks[:2] == before[:2]
    cache.reserve(table, 10, 11)  # alone with it by now
    assert len(cache.copied) == 1
    assert table.blocks is before
    cache.check([table, twin])


@pytest.mark.parametrize("start", [4, 6, 7])
def test_a_block_in_the_index_is_copied_before_what_it_is_known_for_is_overwritten(start: int) -> None:
    cache = Recorded(16)
    table = filled(cache, PROMPT)
    cache.trim(table, start + 1)
    cache.reserve(table, start, start + 1)
    assert len(cache.copied) == 1
    assert hit(cache, PROMPT[:9]) == 8


def test_a_partial_block_is_written_on_behind_what_it_is_known_for() -> None:
    cache = Recorded(16)
    remember(cache, PROMPT)
    table = opened(cache, [*PROMPT, 1, 2, 3]).table
    other = opened(cache, [*PROMPT, 5, 5, 5])
    assert len(cache.copied) == 1  # the second to come needs its own
    cache.reserve(table, 10, 13)
    assert len(cache.copied) == 1
    cache.commit(table, [*PROMPT, 1, 2], 12, drafter=None, drafter_length=0)
    cache.check([table, other.table])
    assert hit(cache, [*PROMPT, 1, 2, 9]) == 12


def test_blocks_needed_foretells_reserve() -> None:
    cache = Recorded(16)
    table = filled(cache, PROMPT)
    twin = cache.fork(table)
    assert cache.blocks_needed(twin, 10, 10) == 0
    assert cache.blocks_needed(twin, 11, 10) == 1
    assert cache.blocks_needed(twin, 13, 10) == 2
    assert cache.blocks_needed(twin, 13, 3) == 4
    free = cache.num_free
    cache.reserve(twin, 10, 13)
    assert free - cache.num_free == 2


def test_reserve_is_all_or_nothing() -> None:
    cache = Recorded(4)
    table = filled(cache, PROMPT)
    twin = cache.fork(table)
    with pytest.raises(OutOfBlocks):
        cache.reserve(twin, 10, 13)  # a copy and a new one
    assert twin.blocks == table.blocks
    assert cache.num_free == 1
    assert cache.copied == []
    cache.check()
    cache.reserve(twin, 10, 12)


def test_reserve_takes_everything_evictable() -> None:
    cache = Recorded(4)
    remember(cache, PROMPT)
    assert cache.num_free == 4
    table = cache.open([1] * 16, limit=0, drafter=None).table
    cache.reserve(table, 0, 16)
    assert cache.stats.evictions == 3
    cache.check([table])
    assert len(cache._index) == 0


# ---- eviction


def test_blocks_go_from_the_end_of_a_prefix_and_the_least_recently_used_first() -> None:
    cache = Recorded(6)
    remember(cache, PROMPT[:8])
    remember(cache, list(range(8)))
    hit(cache, PROMPT[:9])  # used again
    table = opened(cache, [99] * 16).table
    found = []
    for end in range(4, 25, 4):
        cache.reserve(table, end - 4, end)
        entries = {entry.tokens[0] for entry in cache._index}
        found.append(sorted(entries))
    assert found[1:] == [[0, 4, 10, 14], [0, 10, 14], [10, 14], [10], []]


def test_a_prefix_in_use_by_content_is_not_evicted_before_what_needs_it() -> None:
    """The first block is known by an earlier sequence's copy; a later one adds a block behind its own copy of it."""
    cache = Recorded(16)
    remember(cache, PROMPT[:4])
    table = cache.open(PROMPT, limit=0, drafter=None).table
    cache.reserve(table, 0, 8)
    cache.commit(table, PROMPT, 8, drafter=None, drafter_length=0)
    finish(cache, table, PROMPT[:8])  # `check` looks at the order
    assert hit(cache, PROMPT[:9]) == 8


def test_nor_after_a_trim() -> None:
    cache = Recorded(16)
    remember(cache, PROMPT[:4])
    table = cache.open(PROMPT, limit=0, drafter=None).table
    cache.reserve(table, 0, 8)
    cache.commit(table, PROMPT, 8, drafter=None, drafter_length=0)
    cache.trim(table, 4)
    cache.check([table])


def test_a_prefix_that_was_evicted_under_a_running_sequence_is_known_again_when_it_ends() -> None:
    cache = Recorded(5)
    remember(cache, PROMPT[:4])
    table = cache.open(PROMPT, limit=0, drafter=None).table
    cache.reserve(table, 0, 8)
    cache.commit(table, PROMPT, 8, drafter=None, drafter_length=0)
    other = opened(cache, [1] * 12).table
    cache.reserve(other, 0, 12)
    assert cache.stats.evictions == 1
    finish(cache, table, PROMPT[:8])
    cache.close(other, [1] * 12, 0, drafter=None, drafter_length=0)
    assert hit(cache, PROMPT[:9]) == 8


# ---- giving back


def test_trim_gives_back_whole_blocks_and_none_twice() -> None:
    cache = Recorded(16)
    table = opened(cache, PROMPT).table
    cache.reserve(table, 0, 16)
    blocks = table.blocks
    for length, left in ((10, 3), (10, 3), (8, 2), (5, 2), (0, 0)):
        cache.trim(table, length)
        assert len(table.blocks) == left
        assert cache.num_free == 16 - left
    assert table.blocks is blocks
    cache.check([table])


def test_trim_takes_the_drafters_positions_along() -> None:
    cache = Recorded(16)
    table = filled(cache, PROMPT, "d")
    cache.trim(table, 7)
    assert (table.drafter_length, len(table.keys)) == (7, 1)


def test_blocks_written_anew_after_trim_are_known_by_their_new_content() -> None:
    cache = Recorded(16)
    table = filled(cache, PROMPT[:8])
    cache.trim(table, 4)
    other = [*PROMPT[:4], 7, 7, 7, 7]
    cache.reserve(table, 4, 8)
    cache.commit(table, other, 8, drafter=None, drafter_length=0)
    assert hit(cache, [*other, 1]) == 8
    assert hit(cache, PROMPT[:9]) == 8


def test_a_closed_table_is_refused_everywhere() -> None:
    cache = Recorded(16)
    table = filled(cache, PROMPT)
    finish(cache, table, PROMPT)
    assert table.blocks == []
    for use in (
        lambda: finish(cache, table, PROMPT),
        lambda: finish(cache, table, [], keep=False),
        lambda: cache.commit(table, [], 0, drafter=None, drafter_length=0),
        lambda: cache.reserve(table, 0, 4),
        lambda: cache.trim(table, 0),
        lambda: cache.fork(table),
        lambda: cache.exclusive_blocks(table),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert cache.num_free == 16


def test_lengths_that_do_not_fit_together_are_refused() -> None:
    cache = Recorded(16)
    table = opened(cache, PROMPT, "d").table
    cache.reserve(table, 0, 8)
    for length, drafted, message in ((10, 0, "2 blocks"), (8, 9, "drafter_length"), (-1, 0, "committed")):
        with pytest.raises(ValueError, match=message):
            cache.commit(table, PROMPT, length, drafter="d", drafter_length=drafted)
    with pytest.raises(ValueError, match="5 to 4"):
        cache.reserve(table, 5, 4)
    with pytest.raises(ValueError, match="negative"):
        cache.trim(table, -1)
    for options in ({"num_blocks": 0}, {"num_blocks": 1, "block_size": 0}):
        with pytest.raises(ValueError, match="must be positive"):
            BlockCache(copy_block=lambda a, b: None, **options)


def test_a_copy_that_fails_leaks_nothing() -> None:
    def fails(source: int, destination: int) -> None:
        raise RuntimeError("no")

    cache = BlockCache(8, block_size=SIZE, copy_block=fails)
    remember(cache, PROMPT[:4])
    with pytest.raises(RuntimeError, match="no"):
        opened(cache, [*PROMPT[:3], 1, 1])
    cache.check([])
    table = filled(cache, [1, 2, 3])
    twin = cache.fork(table)
    with pytest.raises(RuntimeError, match="no"):
        cache.reserve(twin, 3, 4)
    cache.check([table, twin])
    assert twin.blocks == table.blocks


# ---- figures and cost


def test_stats() -> None:
    cache = Recorded(4)
    remember(cache, PROMPT, "d", drafted=5)
    hit(cache, [*PROMPT, 1], "d")
    opened(cache, [*PROMPT, 1])
    stats = cache.stats
    assert (stats.lookups, stats.asked_tokens) == (3, 32)
    assert (stats.hit_tokens, stats.drafter_hit_tokens) == (15, 5)
    assert stats.copies == len(cache.copied) == 1
    assert stats.evictions == 0


class Counted(list):
    """A list that counts how many of its items are read."""

    read = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        part = super().__getitem__(index)
        self.read += len(part) if isinstance(index, slice) else 1
        return part

    def __iter__(self):  # type: ignore[no-untyped-def]
        raise AssertionError("read from start to end")


@pytest.mark.parametrize("drafted", [100, 2000])
def test_a_step_costs_what_is_new_not_the_length(drafted: int) -> None:
    """Also while the drafter's entries stay far behind."""
    cache = Recorded(600)
    tokens = Counted(range(2000))
    table = cache.open([], limit=0, drafter="d").table
    table.keys = keys = Counted()
    for length in range(1, 1990):
        cache.reserve(table, length - 1, length + 9)  # some of it will be rejected
        cache.commit(table, tokens, length, drafter="d", drafter_length=min(length, drafted))
        cache.trim(table, length)
    assert tokens.read <= 3 * 2000
    assert keys.read <= 2000


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda cache: cache._pool.free.append(cache._pool.free[0]), "free list twice"),
        (lambda cache: cache._pool.free.pop(), "0 states"),
        (lambda cache: cache._pool.references.__setitem__(0, 2), "2 references"),
        (lambda cache: setattr(cache._index.of_block(0), "tokens", (1, 2, 3, 4)), "another's key"),
        (lambda cache: setattr(cache._index.of_block(0), "block", 1), "two entries"),
        (lambda cache: cache._index.remove(4), "idle without content"),
        (lambda cache: cache._pool.idle.move_to_end(4), "needs it"),
        (lambda cache: next(iter(cache._tables)).keys.__setitem__(0, b"x"), "doesn't hold"),
    ],
)
def test_check_sees(damage: Callable[[BlockCache], object], message: str) -> None:
    cache = Recorded(8)
    table = filled(cache, PROMPT)
    remember(cache, list(range(8)))
    cache.check([table])
    with pytest.raises(AssertionError, match="0 expected"):
        cache.check([])
    damage(cache)
    with pytest.raises(AssertionError, match=message):
        cache.check()
