"""Which block of memory belongs to whom: tables, reference counts, copy on write, and the prefix cache. No tensors here."""

from draftproof.cache.cache import BlockCache, Opened
from draftproof.cache.pool import OutOfBlocks
from draftproof.cache.stats import CacheStats
from draftproof.cache.table import BlockTable

__all__ = ["BlockCache", "BlockTable", "CacheStats", "Opened", "OutOfBlocks"]
