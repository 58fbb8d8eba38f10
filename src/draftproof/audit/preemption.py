"""Pools so small that somebody has to give way: which sizes to try, for requests whose lengths are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.models.kv import KEY_BLOCK


@dataclass(frozen=True)
class Span:
    """Tokens of a request at its start and at its end."""

    start: int
    end: int


def _blocks(tokens: int) -> int:
    return -(-tokens // KEY_BLOCK)


def copies_needed(spans: Sequence[Span], least: int) -> int:
    """How often the requests have to be asked so that together they want three times `least` blocks."""
    wanted = sum(_blocks(span.end) for span in spans)
    return max(1, -(-3 * least // wanted))


def pool_sizes(spans: Sequence[Span], least: int, most: int = 4) -> list[int]:
    """Pools, in blocks, in which those who are let in at the start should outgrow the pool, the tightest first.

    Args:
        spans: the requests, in order of arrival.
        least: blocks for the longest one alone.
        most: how many sizes to give.
    """
    promising = [size for size in range(least, 4 * least + 8) if _overgrows(spans, size)]
    return promising[:most] or [least + 1, least + 3]


def _overgrows(spans: Sequence[Span], blocks: int) -> bool:
    """Whether requests, let in while there is room for them and a block for each to grow, need more in the end."""
    free, running, final = blocks, 0, 0
    for span in spans:
        needed = _blocks(span.start)
        if running and needed + running > free:
            break
        free -= needed
        running += 1
        final += _blocks(span.end)
    return running > 1 and final > blocks
