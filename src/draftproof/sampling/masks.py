"""Which tokens a request's fixed rules let through. Masks are packed: one bit a token, 32 to a word."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from draftproof.errors import RequestError
from draftproof.sampling.resolved import ResolvedSampling

_FEW = 2048
"""Up to so many blocked tokens are set one by one, which is ten times as fast as going over the whole vocabulary."""


def pack(allowed: np.ndarray) -> np.ndarray:
    """Bools ``[vocab]`` as uint32 words ``[ceil(vocab / 32)]``, lowest bit first; bits past the vocabulary are 0."""
    padded = np.zeros(-(-len(allowed) // 32) * 32, bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<u4")


def block(rows: torch.Tensor, words: np.ndarray) -> None:
    """Set what the packed masks do not let through to ``-inf``, in place.

    Args:
        rows: ``[m, vocab]``, floating.
        words: uint32 ``[m, ceil(vocab / 32)]``, or one mask ``[1, ...]`` for all rows.
    """
    octets = np.ascontiguousarray(~words).view(np.uint8)
    blocked = np.unpackbits(octets, axis=1, count=rows.shape[1], bitorder="little").view(bool)
    rows.masked_fill_(torch.from_numpy(blocked).to(rows.device), float("-inf"))


def _few_blocked(allowed: np.ndarray) -> np.ndarray | None:
    """The ids that are not allowed, or None where they are too many to write one by one."""
    (ids,) = (~allowed).nonzero()
    return ids if len(ids) <= _FEW else None


class FixedMasks:
    """Allowed and banned tokens, and no end token before `min_tokens`.

    Attributes:
        min_tokens: the request's.

    Raises:
        RequestError: DP448, while `min_tokens` holds no token is left.
    """

    def __init__(self, sampling: ResolvedSampling, end_token_ids: Iterable[int], vocab_size: int) -> None:
        late = np.full(vocab_size, sampling.allowed_token_ids is None)
        late[sorted(sampling.allowed_token_ids or ())] = True
        late[sorted(sampling.banned_token_ids)] = False
        early = late.copy()
        early[sorted(end_token_ids)] = False
        self.min_tokens = sampling.min_tokens
        if self.min_tokens and not early.any():
            raise RequestError(
                "DP448",
                f"min_tokens={self.min_tokens} leaves no token to choose: all that may come are end tokens",
            )
        self._early, self._late = pack(early), pack(late)
        self._few_early, self._few_late = _few_blocked(early), _few_blocked(late)

    def words(self, position: int) -> np.ndarray:
        """The packed mask of an output position."""
        return self._early if position < self.min_tokens else self._late

    def block(self, rows: torch.Tensor, position: int) -> None:
        """Mask rows ``[m, vocab]`` in place; the first is that of the given output position."""
        early = min(max(self.min_tokens - position, 0), rows.shape[0])
        _block_same(rows[:early], self._early, self._few_early)
        _block_same(rows[early:], self._late, self._few_late)


def _block_same(rows: torch.Tensor, words: np.ndarray, few: np.ndarray | None) -> None:
    """One mask for all rows, in place."""
    if not len(rows):
        return
    if few is None:
        block(rows, words[None])
    elif len(few):
        rows.index_fill_(1, torch.from_numpy(few).to(rows.device), float("-inf"))
