"""With room for everything, a hit is as long as anything that was kept allows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.cache import BlockCache

SIZE = 4
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


def common(a: list[int], b: list[int]) -> int:
    """Leading tokens in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def usable(asked: list[int], kept: list[tuple[list[int], int]], drafter: bool) -> int:
    """The most leading tokens of `asked` that one of the kept sequences has entries for."""
    limit = len(asked) - 1
    return max((min(common(asked, t), limit, d if drafter else limit) for t, d in kept), default=0)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(TOKENS, st.booleans(), st.integers(0, 14)), min_size=1, max_size=12))
def test_the_longest_prefix_is_found(sequences: list[tuple[list[int], bool, int]]) -> None:
    cache = BlockCache(400, block_size=SIZE, copy_block=lambda source, destination: None)
    kept: list[tuple[list[int], int]] = []
    for tokens, drafts, drafted in sequences:
        drafter = "d" if drafts else None
        found = cache.open(tokens, limit=len(tokens) - 1, drafter=drafter)
        whole = usable(tokens, kept, drafter=False)
        if drafts:  # blocks of several sequences may add up to more than one of them has
            assert usable(tokens, kept, drafter=True) <= found.length <= whole
        else:
            assert found.length == whole
        cache.reserve(found.table, found.length, len(tokens))
        length = min(max(drafted, found.drafter_length), len(tokens)) if drafts else 0
        cache.close(found.table, tokens, len(tokens), drafter=drafter, drafter_length=length)
        cache.check([])
        kept.append((tokens, length))
    assert cache.stats.evictions == 0
