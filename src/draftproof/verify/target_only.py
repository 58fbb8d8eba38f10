"""The target-only rule: chain drafts judged by the target's probabilities alone, with uniform coins.

Call-compatible with the rule of the reference serving engine. The drafts are taken as points, not as samples of a
known distribution: accepting d with probability p(d) and otherwise drawing from p without d leaves the output
distributed as p (chain form of speculative sampling: Leviathan, Kalman, Matias 2023, section 2.3, with q a point
mass). Thresholds below 1.0 trade that exactness for acceptance.
"""

from __future__ import annotations

import torch

from draftproof.verify import contract, kernels
from draftproof.verify.distribution import inverse_cdf, truncate
from draftproof.verify.sampling_info import SamplingInfoLike
from draftproof.verify.walk import Level, walk


def compute_dflash_sampling_correct_drafts_and_bonus(
    *,
    candidates: torch.Tensor,
    next_token_logits: torch.Tensor,
    sampling_info: SamplingInfoLike,
    max_top_k: int | None = None,
    uniform_top_k_value: int | None = None,
    threshold_single: float | None = None,
    threshold_acc: float | None = None,
    uniform_samples: torch.Tensor | None = None,
    uniform_samples_for_final_sampling: torch.Tensor | None = None,
    use_sparse_topk: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept draft d at a level iff ``p(d) > 0`` and (``u <= p(d) / threshold_acc`` or ``p(d) >= threshold_single``).

    At the first rejection the bonus is drawn from p without d, by inverse CDF in token order: the first token whose
    running sum exceeds ``w * remaining mass``; the last token with positive mass if rounding leaves none; with no
    mass left, d is accepted after all. With every draft accepted the bonus is drawn from the last row's p.

    Args:
        candidates: int ``[bs, draft_token_num]``; column 0 the anchor, then the draft tokens.
        next_token_logits: float ``[bs * draft_token_num, vocab]``, penalised and masked; row ``b * n + t`` predicts
            the token after ``candidates[b, t]``. Rows past a sequence's first rejection may hold anything.
        sampling_info: settings, one entry a sequence (see `SamplingInfo`).
        max_top_k: the caller's word that no `top_ks` entry is larger; checked in debug mode, not needed here.
        uniform_top_k_value: the caller's word that all `top_ks` entries are this; likewise.
        threshold_single, threshold_acc: in [0, 1]; `draftproof.verify.config.DEFAULTS` where None.
        uniform_samples: float ``[bs, draft_token_num]`` in [0, 1), the coins u; drawn by `torch.rand` where None.
        uniform_samples_for_final_sampling: float ``[bs]`` in [0, 1), the coins w; likewise.
        use_sparse_topk: accepted for call compatibility; results never depend on it.

    Returns:
        accepted int32 ``[bs]`` (draft tokens kept), bonus int64 ``[bs]``.

    Raises:
        ContractError: a precondition does not hold (codes DP1xx, in the order of `draftproof.verify.contract`).
    """
    bs, n = contract.check_layout(candidates, next_token_logits)
    contract.check_coin_shapes(uniform_samples, uniform_samples_for_final_sampling, bs, n)
    device, vocab = next_token_logits.device, next_token_logits.shape[1]
    contract.check_integer(candidates, "candidates")
    contract.check_logit_dtype(next_token_logits)
    filters = contract.resolve_filters(sampling_info, bs, device)
    contract.check_promises(filters, max_top_k, uniform_top_k_value)
    single, acc = contract.resolve_thresholds(threshold_single, threshold_acc)
    candidates = candidates.to(torch.int64)
    contract.check_tokens(candidates, vocab)
    coins = contract.resolve_coins(uniform_samples, "uniform_samples", (bs, n), device)
    final = contract.resolve_coins(
        uniform_samples_for_final_sampling, "uniform_samples_for_final_sampling", (bs,), device
    )
    if kernels.available(next_token_logits):
        outcomes = kernels.target_only(candidates, next_token_logits, filters, coins, final, single, acc)
        contract.raise_first_fault(outcomes, n)
        return kernels.pack(outcomes)
    lens = contract.resolve_draft_lens(None, bs, n, device)

    def step(level: Level) -> tuple[torch.Tensor, torch.Tensor]:
        contract.check_rows(next_token_logits, level.rows[level.walking])
        logits = next_token_logits.index_select(0, level.rows)
        p = truncate(logits, filters.take(level.sequences)).probabilities()
        mass = p.gather(-1, level.drafts[:, None])[:, 0]
        accept = (mass > 0) & ((coins[level.sequences, level.index] <= mass / acc) | (mass >= single))
        rest = p.scatter(-1, level.drafts[:, None], torch.where(level.drafted, 0.0, mass)[:, None])
        bonus, remaining = inverse_cdf(rest, final[level.sequences])
        return accept | (remaining <= 0), bonus

    return walk(candidates, lens, step)
