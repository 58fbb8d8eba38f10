"""The blocks of one sequence."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class BlockTable:
    """Where the positions of one sequence live: position p in block ``blocks[p // block_size]``.

    Two tables are equal only when they are the same object.

    Attributes:
        blocks: block ids in order of position. The same list object is read by whoever stores the keys and values, so it
            is changed in place and never replaced.
        keys: content keys of the leading blocks that are full and committed, one each.
        drafter: whose context keys and values go with this sequence; None: nobody's.
        drafter_length: leading positions of which the drafter's entries are valid, as last reported.
    """

    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    drafter: str | None = None
    drafter_length: int = 0

    def copied(self) -> BlockTable:
        """A table over the same blocks."""
        return BlockTable(list(self.blocks), list(self.keys), self.drafter, self.drafter_length)
