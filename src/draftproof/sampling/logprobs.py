"""Log-probabilities of tokens, from raw logit rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.sampling.fields import ALL_TOKENS

_ROWS_AT_ONCE = 16
"""Bounds the float32 copy when a whole prompt comes at once; rows do not depend on it."""


@dataclass(frozen=True)
class TokenLogprobs:
    """What the model thought of one token, before penalties, masks and temperature.

    Attributes:
        token_id: the token that stands there.
        logprob: natural logarithm of its probability.
        rank: 1 for the likeliest token of the row; among equals the lower id ranks first.
        top: the likeliest tokens with their log-probabilities, likeliest first, lower id first among equals.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Log-softmax of raw rows in float32, at the given tokens and at the likeliest ones.

    A row's result depends on that row alone, to the last bit, however many rows come with it.

    Args:
        logits: ``[n, vocab]``, any floating dtype; row t is the one that predicts ``token_ids[t]``.
        token_ids: n ids, each ``0 <= id < vocab``.
        top: how many of the likeliest to list, >= 0; -1 or more than there are: all.

    Returns:
        One entry a row.
    """
    if logits.shape[0] != len(token_ids):
        raise RuntimeError(f"{logits.shape[0]} rows of logits for {len(token_ids)} tokens")
    found: list[TokenLogprobs] = []
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        chunk = slice(start, start + _ROWS_AT_ONCE)
        found += _of_rows(logits[chunk].float(), token_ids[chunk], top)
    return found


def _of_rows(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = torch.tensor(list(token_ids), device=logits.device)[:, None]
    own = logits.gather(1, chosen)
    below = torch.arange(logits.shape[1], device=logits.device) < chosen
    ranks = 1 + ((logits > own) | ((logits == own) & below)).sum(dim=1)
    values = logprobs.gather(1, chosen)[:, 0].tolist()
    tops = [_likeliest(row, mine, top) for row, mine in zip(logits, logprobs, strict=True)]
    return [
        TokenLogprobs(token_id, value, rank, best)
        for token_id, value, rank, best in zip(token_ids, values, ranks.tolist(), tops, strict=True)
    ]


def _likeliest(logits: torch.Tensor, logprobs: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest tokens of one row. `topk` finds the least of them but is free in its choice among equals,
    so all that reach it are put in order: by logit, then by id (they come in order of id, and the sort is stable)."""
    if count == 0:
        return ()
    count = logits.shape[0] if count == ALL_TOKENS else min(count, logits.shape[0])
    least = logits.topk(count).values[-1]
    ids = (logits >= least).nonzero()[:, 0]
    order = logits[ids].sort(descending=True, stable=True).indices[:count]
    ids = ids[order]
    return tuple(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))
