"""The rejection rule, for drafts sampled from a distribution that is known.

Leviathan, Kalman, Matias 2023, "Fast inference from transformers via speculative decoding", section 2.3; Chen et al.
2023, "Accelerating large language model decoding with speculative sampling", algorithm 2. Lossless in distribution
and of the highest acceptance, but the text depends on the drafter, even for a fixed seed.
"""

from __future__ import annotations

import torch

from draftproof.verify import contract, kernels
from draftproof.verify.distribution import inverse_cdf, truncate
from draftproof.verify.sampling_info import SamplingInfoLike
from draftproof.verify.walk import Level, walk


def verify_rejection(
    *,
    candidates: torch.Tensor,
    next_token_logits: torch.Tensor,
    draft_probs: torch.Tensor,
    sampling_info: SamplingInfoLike,
    uniform_samples: torch.Tensor | None = None,
    uniform_samples_for_final_sampling: torch.Tensor | None = None,
    draft_lens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept draft d iff ``u * q(d) < p(d)``; at the first rejection draw the bonus from ``normalise(relu(p - q))``.

    If that has no mass, the bonus is drawn from p. With every draft accepted it is drawn from the last row's p.

    Args:
        candidates: int ``[bs, n]``; column 0 the anchor, then the draft tokens.
        next_token_logits: float ``[bs * n, vocab]``, penalised and masked; row ``b * n + t`` predicts the token
            after ``candidates[b, t]``. Rows past a sequence's first rejection may hold anything.
        draft_probs: float ``[bs, n - 1, vocab]``; entry t is the distribution that ``candidates[b, t + 1]`` was
            really drawn from, after the drafter's own truncation. Rows not read may hold anything.
        sampling_info: settings of the target, one entry a sequence (see `SamplingInfo`).
        uniform_samples: float ``[bs, n]`` in [0, 1), the coins u; drawn by `torch.rand` where None.
        uniform_samples_for_final_sampling: float ``[bs]`` in [0, 1), the bonus coins; likewise.
        draft_lens: int ``[bs]`` in [0, n - 1], draft tokens of each sequence; later columns are ignored. All by
            default.

    Returns:
        accepted int32 ``[bs]``, bonus int64 ``[bs]``.

    Raises:
        ContractError: a precondition does not hold (codes DP1xx); ``q(d) <= 0`` at a level that is judged (DP128).
    """
    bs, n = contract.check_layout(candidates, next_token_logits)
    contract.check_coin_shapes(uniform_samples, uniform_samples_for_final_sampling, bs, n)
    device, vocab = next_token_logits.device, next_token_logits.shape[1]
    contract.check_integer(candidates, "candidates")
    contract.check_logit_dtype(next_token_logits)
    contract.check_draft_probs(draft_probs, bs, n, vocab, device)
    filters = contract.resolve_filters(sampling_info, bs, device)
    lens = contract.resolve_draft_lens(draft_lens, bs, n, device)
    candidates = candidates.to(torch.int64)
    contract.check_tokens(candidates, vocab, None if draft_lens is None else lens)
    coins = contract.resolve_coins(uniform_samples, "uniform_samples", (bs, n), device)
    final = contract.resolve_coins(
        uniform_samples_for_final_sampling, "uniform_samples_for_final_sampling", (bs,), device
    )
    if kernels.available(next_token_logits):
        outcomes = kernels.rejection(candidates, lens, next_token_logits, draft_probs, filters, coins, final)
        contract.raise_first_fault(outcomes, n)
        return kernels.pack(outcomes)

    def step(level: Level) -> tuple[torch.Tensor, torch.Tensor]:
        contract.check_rows(next_token_logits, level.rows[level.walking])
        logits = next_token_logits.index_select(0, level.rows)
        p = truncate(logits, filters.take(level.sequences)).probabilities()
        w = final[level.sequences]
        if n == 1:
            return torch.zeros_like(level.drafted), inverse_cdf(p, w)[0]
        q = draft_probs[level.sequences, min(level.index, n - 2)].to(torch.float64)
        return _judge(p, q, level, coins[level.sequences, level.index], w)

    return walk(candidates, lens, step)


def _judge(
    p: torch.Tensor, q: torch.Tensor, level: Level, u: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One level: p, q float64 ``[k, vocab]``, coins ``[k]``."""
    judged = level.walking & level.drafted
    at = level.drafts[:, None]
    q_draft = q.gather(-1, at)[:, 0]
    _check(level, ~judged | (q_draft > 0), contract.BAD_DRAFT_PROB)
    accept = u * q_draft < p.gather(-1, at)[:, 0]
    _check(level, ~judged | accept | ((q >= 0) & (q < torch.inf)).all(-1), contract.BAD_DRAFT_ROW)
    residual = torch.where(level.drafted[:, None], torch.relu(p - q), p)
    bonus, mass = inverse_cdf(residual, w)
    return accept, torch.where(mass > 0, bonus, inverse_cdf(p, w)[0])


def _check(level: Level, sound: torch.Tensor, fault: int) -> None:
    contract.check_draft_probs_read(sound, fault, level.index, level.sequences, level.drafts)
