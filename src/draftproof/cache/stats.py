"""What the prefix cache has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CacheStats:
    """Running totals since the cache was made.

    Attributes:
        lookups: sequences opened.
        asked_tokens: tokens of all of them.
        hit_tokens: positions restored for the target.
        drafter_hit_tokens: positions restored for the drafter as well.
        copies: blocks copied, on a partial hit or before a shared block was written.
        evictions: cached blocks given up because space was needed.
    """

    lookups: int = 0
    asked_tokens: int = 0
    hit_tokens: int = 0
    drafter_hit_tokens: int = 0
    copies: int = 0
    evictions: int = 0
