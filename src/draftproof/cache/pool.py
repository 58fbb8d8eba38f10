"""Block ids and the state of each: free, idle (cached, held by nobody), or held by one or more tables."""

from __future__ import annotations

from collections import OrderedDict


class OutOfBlocks(Exception):  # noqa: N818 - a condition that the scheduler deals with, no one's error
    """More blocks are needed than there are free or evictable ones; nothing has changed."""


class BlockPool:
    """Reference counts, the free list and the order in which idle blocks go.

    Every block is in exactly one state. All operations take constant time.

    Args:
        num_blocks: ids are 0 .. num_blocks - 1.

    Attributes:
        references: for each block, how many tables hold it.
        free: blocks without content, the next to be used last: one just given back is likely still in the processor's
            cache, and memory never used stays untouched.
        idle: blocks with cached content that nobody holds, the next to be evicted first.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be positive, got {num_blocks}")
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))
        self.idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that `take` can still hand out."""
        return len(self.free) + len(self.idle)

    def take(self) -> tuple[int, bool]:
        """A block, now held once, and whether it was idle, so that its cached content is lost.

        Raises:
            OutOfBlocks: all are held.
        """
        if self.free:
            block, evicted = self.free.pop(), False
        elif self.idle:
            (block, _), evicted = self.idle.popitem(last=False), True
        else:
            raise OutOfBlocks(f"all {self.num_blocks} blocks are in use")
        self.references[block] = 1
        return block, evicted

    def share(self, block: int) -> None:
        """One more holder, of a held or idle block."""
        self.idle.pop(block, None)
        self.references[block] += 1

    def drop(self, block: int, cached: bool) -> bool:
        """One holder less. Without any left the block is idle if its content is `cached`, else free; True: it is idle now.

        Raises:
            RuntimeError: nobody holds it.
        """
        if self.references[block] < 1:
            raise RuntimeError(f"block {block} is given back more often than it was taken")
        self.references[block] -= 1
        if self.references[block]:
            return False
        if cached:
            self.idle[block] = None
        else:
            self.free.append(block)
        return cached

    def touch(self, block: int) -> None:
        """An idle block has been of use: the others go before it. Nothing happens to a held one."""
        if block in self.idle:
            self.idle.move_to_end(block)

    def uncache(self, block: int) -> None:
        """Its content isn't cached any more: an idle block is free."""
        if block in self.idle:
            del self.idle[block]
            self.free.append(block)
