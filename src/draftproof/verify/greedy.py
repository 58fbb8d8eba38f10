"""The greedy rule: a draft token is kept while it is what the target would have predicted."""

from __future__ import annotations

import torch

from draftproof.verify import contract


def compute_dflash_correct_drafts_and_bonus(
    *, candidates: torch.Tensor, target_predict: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept while ``candidates[b, t + 1] == target_predict[b, t]``; the bonus is ``target_predict[b, accepted]``.

    Args:
        candidates: int ``[bs, draft_token_num]``; column 0 the anchor, then the draft tokens.
        target_predict: int ``[bs, draft_token_num]``; the target's argmax after each candidate, lowest id on ties.

    Returns:
        accepted int32 ``[bs]`` (draft tokens kept), bonus int64 ``[bs]``.

    Raises:
        ContractError: DP100, DP101, DP103, DP104, DP106, DP109, DP110.
    """
    contract.check_candidates_2d(candidates)
    contract.check_sizes(candidates)
    contract.check_predict_shape(candidates, target_predict)
    contract.check_integer(candidates, "candidates")
    contract.check_integer(target_predict, "target_predict")
    predict = target_predict.to(torch.int64)
    agrees = candidates[:, 1:].to(torch.int64) == predict[:, :-1]
    accepted = agrees.to(torch.int32).cumprod(dim=1).sum(dim=1)
    bonus = predict.gather(1, accepted[:, None])[:, 0]
    return accepted.to(torch.int32), bonus
