"""Logits to the target distribution: the one function all rules share. Rows come already penalised and masked.

Per row, in float64: temperature; top-k; top-p over the top-k survivors, renormalised (a token stays iff the mass
ranked strictly before it is below top_p); min-p relative to the best token. Tokens are ranked by logit, ties by
lower id; at least one survives. ``-inf`` marks a masked token, which never survives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftproof.verify import contract
from draftproof.verify.sampling_info import Filters, SamplingInfoLike


@dataclass(frozen=True)
class Truncated:
    """Rows after temperature and truncation.

    Attributes:
        scores: float64 ``[rows, vocab]``, (logit - best logit of the row) / temperature: 0 at the best token.
        keep: bool ``[rows, vocab]``, the surviving tokens.
    """

    scores: torch.Tensor
    keep: torch.Tensor

    def probabilities(self) -> torch.Tensor:
        """float64 ``[rows, vocab]``, rows sum to 1, exactly 0 outside the survivors."""
        weights = torch.where(self.keep, torch.exp(self.scores), 0.0)
        return weights / _row_total(weights)


def truncate(logits: torch.Tensor, filters: Filters) -> Truncated:
    """Apply temperature and the truncations. `logits` float ``[rows, vocab]``, one entry of `filters` a row."""
    values = logits.to(torch.float64)
    scores = (values - values.amax(-1, keepdim=True)) / filters.temperatures[:, None]
    keep = values > -torch.inf
    if filters.ranked:
        keep &= _ranked_keep(values, scores, filters)
    keep &= scores >= torch.log(filters.min_ps)[:, None]
    return Truncated(scores, keep)


def _ranked_keep(values: torch.Tensor, scores: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Top-k, then top-p over its survivors."""
    order = torch.sort(values, dim=-1, descending=True, stable=True).indices
    rank = torch.arange(values.shape[-1], device=values.device)
    in_top_k = rank < filters.top_ks[:, None]
    weights = torch.where(in_top_k, torch.exp(scores.gather(-1, order)), 0.0)
    before = _running_sum(weights)
    total = before[:, -1:]
    before = torch.cat([torch.zeros_like(total), before[:, :-1]], dim=-1)
    # top_p 1 keeps everything: rounding must not drop a tail whose mass is below the last place of the sum.
    in_top_p = (before < filters.top_ps[:, None] * total) | (filters.top_ps[:, None] >= 1.0)
    return torch.empty_like(in_top_k).scatter_(-1, order, in_top_k & in_top_p)


def _running_sum(weights: torch.Tensor) -> torch.Tensor:
    """Sums in token order. A lone row on CUDA takes another algorithm there, so it never goes alone."""
    if weights.is_cuda and weights.shape[0] == 1:
        return weights.expand(2, -1).contiguous().cumsum(-1)[:1]
    return weights.cumsum(-1)


def _row_total(weights: torch.Tensor) -> torch.Tensor:
    """Sum of each row, ``[rows, 1]``, by the running sum: `sum` splits a row over threads when rows are few."""
    return _running_sum(weights)[:, -1:]


def first_argmax(values: torch.Tensor) -> torch.Tensor:
    """Index of the largest value of each row, the lowest one on ties. ``[rows, vocab]`` -> int64 ``[rows]``."""
    index = torch.arange(values.shape[-1], device=values.device)
    best = values.amax(-1, keepdim=True)
    return torch.where(values == best, index, values.shape[-1]).amin(-1)


def inverse_cdf(weights: torch.Tensor, coins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row: the first whose running sum of weights exceeds ``coin * total``.

    Args:
        weights: float64 ``[rows, vocab]``, >= 0, need not sum to 1.
        coins: float64 ``[rows]`` in [0, 1].

    Returns:
        The token, int64 ``[rows]`` (the last one with positive weight where rounding leaves none), and the total
        weight, float64 ``[rows]``; where that is 0 the token means nothing.
    """
    vocab = weights.shape[-1]
    running = _running_sum(weights)
    total = running[:, -1]
    found = torch.searchsorted(running, (coins * total)[:, None], right=True)[:, 0]
    index = torch.arange(vocab, device=weights.device)
    last = torch.where(weights > 0, index, 0).amax(-1)
    return torch.minimum(found, last), total


def target_probs(logits: torch.Tensor, sampling_info: SamplingInfoLike) -> torch.Tensor:
    """The target distribution of each row, as every rule of this package uses it.

    Args:
        logits: float ``[rows, vocab]``, penalised and masked (``-inf`` marks a masked token). Not modified.
        sampling_info: settings, one entry a row.

    Returns:
        float64 ``[rows, vocab]`` on the same device; rows sum to 1, truncated tokens are exactly 0.

    Raises:
        ContractError: what `draftproof.verify.contract` checks (codes DP1xx).
    """
    contract.check_logits(logits, "logits")
    filters = contract.resolve_filters(sampling_info, logits.shape[0], logits.device)
    contract.check_rows(logits, torch.arange(logits.shape[0], device=logits.device), name="logits")
    return truncate(logits, filters).probabilities()
