"""The prefix index: which block holds the entries of which tokens after which prefix."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

ROOT = b""
"""The key of the empty prefix."""
NEIGHBOURS = 16
"""Entries looked at on each side of a query, when the best partial match is sought. The best match of the tokens is the
nearest entry on one side; more are looked at because the drafter's entries of that one may be missing."""


def content_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a block: it stands for all tokens from position 0 to the block's last.

    A 256-bit digest, so that two different prefixes having one key needn't be reckoned with.

    Args:
        parent: the key of the block before, `ROOT` for the first block.
        tokens: of this block, as many as its valid positions.
    """
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=32).digest()


def last_key(keys: Sequence[bytes], count: int | None = None) -> bytes:
    """The key of the last of a prefix's blocks, of which `keys` has one each; of its first `count` blocks where given."""
    count = len(keys) if count is None else count
    return keys[count - 1] if count else ROOT


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for count, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return count
    return min(len(a), len(b))


@dataclass(eq=False)
class Entry:
    """A cached block.

    Attributes:
        key: `content_key` of parent and tokens.
        parent: key of the block before it.
        tokens: of its valid leading positions; fewer than a block's where a sequence ended in the middle of it.
        block: where the entries are.
        drafter: the one drafter whose entries the block holds besides the target's; None: nobody's.
        drafter_length: leading positions of the block for which that drafter's entries are valid.
    """

    key: bytes
    parent: bytes
    tokens: tuple[int, ...]
    block: int
    drafter: str | None = None
    drafter_length: int = 0

    def valid(self, drafter: str | None) -> int:
        """Leading positions with the target's entries and this drafter's; with None the target's alone count."""
        if drafter is None:
            return len(self.tokens)
        return min(self.drafter_length, len(self.tokens)) if drafter == self.drafter else 0


class PrefixIndex:
    """Entries by content and by block.

    An entry is right whether or not the block before it is still cached (it is merely out of reach without it), so
    entries come and go one by one. A lookup takes time in the block's tokens and the logarithm of the number of siblings.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}
        self._siblings: dict[bytes, list[Entry]] = {}  # by parent, in the order of their tokens

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_key.values())

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def find(self, key: bytes) -> Entry | None:
        """The entry with exactly this content."""
        return self._by_key.get(key)

    def of_block(self, block: int) -> Entry | None:
        """What the block is indexed as."""
        return self._by_block.get(block)

    def add(self, entry: Entry) -> None:
        """Index a block that isn't yet, with content that isn't yet."""
        self._by_key[entry.key] = entry
        self._by_block[entry.block] = entry
        siblings = self._siblings.setdefault(entry.parent, [])
        siblings.insert(bisect_left(siblings, entry.tokens, key=_tokens), entry)

    def remove(self, block: int) -> None:
        """Forget what the block holds, if it is indexed."""
        entry = self._by_block.pop(block, None)
        if entry is None:
            return
        del self._by_key[entry.key]
        siblings = self._siblings[entry.parent]
        del siblings[bisect_left(siblings, entry.tokens, key=_tokens)]
        if not siblings:
            del self._siblings[entry.parent]

    def move(self, entry: Entry, block: int) -> None:
        """The same content is found in another block from now on."""
        del self._by_block[entry.block]
        entry.block = block
        self._by_block[block] = entry

    def best(self, parent: bytes, tokens: tuple[int, ...], drafter: str | None) -> tuple[Entry | None, int]:
        """The entry after `parent` with the most leading positions of use for `tokens`, and how many those are."""
        siblings = self._siblings.get(parent, [])
        place = bisect_left(siblings, tokens, key=_tokens)
        right = islice(siblings, place, place + NEIGHBOURS)
        left = (siblings[i] for i in range(place - 1, max(place - 1 - NEIGHBOURS, -1), -1))
        found: Entry | None = None
        length = 0
        for side in (right, left):
            for entry in side:
                common = common_length(entry.tokens, tokens)
                if common <= length:
                    break  # in the order of tokens, those farther away have no more in common
                useful = min(common, entry.valid(drafter))
                if useful > length:
                    found, length = entry, useful
        return found, length


def _tokens(entry: Entry) -> tuple[int, ...]:
    return entry.tokens
