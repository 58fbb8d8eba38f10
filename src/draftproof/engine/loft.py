"""Context features of cached blocks that the drafter has not taken in yet.

Turning features into the drafter's keys and values costs a percent of the time of a batch, for outputs whose blocks mostly
nobody asks for again. So they wait here, by block, and whoever finds the block in the prefix cache finds them with it. The cache
counts such positions as the drafter's: its entries are in the page, or can be made from here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftproof.engine.sequence import KeptRows


@dataclass(frozen=True)
class Pending:
    """Features of consecutive positions of a block.

    Attributes:
        start: the first one's position in its sequence.
        pieces: where they lie, in order.
    """

    start: int
    pieces: tuple[KeptRows, ...]

    @property
    def count(self) -> int:
        return sum(piece.count for piece in self.pieces)


class Loft:
    """What waits, by block; the oldest first.

    Attributes:
        rows: how many rows of features wait in all.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._waiting: OrderedDict[int, Pending] = OrderedDict()

    def find(self, block: int) -> Pending | None:
        """What waits for a block, which counts as used."""
        pending = self._waiting.get(block)
        if pending is not None:
            self._waiting.move_to_end(block)
        return pending

    def put(self, block: int, pending: Pending) -> None:
        """From now on this waits for the block, and nothing else."""
        self.drop(block)
        self._waiting[block] = pending
        self.rows += pending.count

    def drop(self, block: int) -> None:
        """Nothing waits for the block any more."""
        pending = self._waiting.pop(block, None)
        if pending is not None:
            self.rows -= pending.count

    def copy(self, source: int, destination: int) -> None:
        """What waits for one block waits for the other as well."""
        pending = self._waiting.get(source)
        if pending is not None:
            self.put(destination, pending)
        else:
            self.drop(destination)

    def clear(self) -> None:
        self._waiting.clear()
        self.rows = 0

    def take_oldest(self, rows: int) -> list[tuple[int, Pending]]:
        """Take out what has been of no use for longest, until at most `rows` rows wait."""
        taken = []
        while self.rows > rows:
            block, pending = self._waiting.popitem(last=False)
            self.rows -= pending.count
            taken.append((block, pending))
        return taken


def gather(pieces: list[KeptRows], more: Iterable[KeptRows]) -> None:
    """Append pieces; those that go on where the last one ends become one with it. Only pieces of `pieces` itself change."""
    for piece in more:
        last = pieces[-1] if pieces else None
        if (
            last is not None
            and last.features is piece.features
            and piece.first == last.first + last.count * last.step
            and (last.step == piece.step or piece.count == 1)
        ):
            last.count += piece.count
        else:
            pieces.append(KeptRows(piece.features, piece.first, piece.count, piece.step))


def cut(pieces: Sequence[KeptRows], skip: int, count: int) -> list[KeptRows]:
    """Rows ``[skip, skip + count)`` of all that the pieces hold."""
    return split(pieces, (skip, count))[1]


def split(pieces: Sequence[KeptRows], sizes: Iterable[int]) -> list[list[KeptRows]]:
    """Shares of so many rows, one after the other, of all that the pieces hold; shorter ones where they end. In one pass."""
    shares, number, used = [], 0, 0
    for size in sizes:
        share: list[KeptRows] = []
        while size > 0 and number < len(pieces):
            piece = pieces[number]
            some = min(piece.count - used, size)
            share.append(KeptRows(piece.features, piece.first + used * piece.step, some, piece.step))
            size, used = size - some, used + some
            if used == piece.count:
                number, used = number + 1, 0
        shares.append(share)
    return shares
