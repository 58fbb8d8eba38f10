"""The greedy rule: a draft token is kept while it is what the target would have predicted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.verify import contract, kernels

_ROWS_AT_ONCE = 64
"""Rows converted to float32 together for an argmax; bounds the copy."""


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


def verify_greedy(
    *, next_token_logits: torch.Tensor, first_rows: Sequence[int], drafts: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """The same rule straight from logit rows, for ragged drafts: argmax and comparison in one pass over each row.

    Rows behind the first that disagrees are read by nobody and may hold anything.

    Args:
        next_token_logits: float ``[rows, vocab]``, penalised and masked.
        first_rows: for each sequence the row after its anchor; the rows after its drafts follow that one.
        drafts: for each sequence its draft tokens, any number; what is no token id is never accepted.

    Returns:
        For each sequence (draft tokens kept, bonus). The bonus is -1, and the count the row's place, where a row that was
        read has NaN.

    Raises:
        ContractError: DP100, DP102, DP103, DP105, DP111, DP120.
    """
    contract.check_logits(next_token_logits, "next_token_logits")
    contract.check_first_rows(first_rows, drafts, next_token_logits.shape[0])
    if not drafts:
        return []
    if kernels.available(next_token_logits):
        return kernels.greedy(next_token_logits, first_rows, drafts)
    return greedy_reference(next_token_logits, first_rows, drafts)


def greedy_reference(
    logits: torch.Tensor, first_rows: Sequence[int], drafts: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """`verify_greedy` in plain PyTorch, without checks."""
    rows = [
        first + offset
        for first, mine in zip(first_rows, drafts, strict=True)
        for offset in range(1 + len(mine))
    ]
    whole = rows == list(range(logits.shape[0]))
    if not whole:
        logits = logits[torch.tensor(rows, device=logits.device)]
    ids, highest = [], []
    for part in logits.split(_ROWS_AT_ONCE):
        # In float32, where argmax is several times faster on a CPU. NaN counts as the maximum.
        part = part.float()
        best = part.argmax(dim=-1)
        ids.append(best)
        highest.append(part.gather(-1, best[:, None]))
    choices = torch.cat(ids).tolist()
    broken = torch.cat(highest)[:, 0].isnan().tolist()
    outcomes: list[tuple[int, int]] = []
    at = 0
    for mine in drafts:
        accepted = 0
        while not broken[at + accepted] and accepted < len(mine) and mine[accepted] == choices[at + accepted]:
            accepted += 1
        outcomes.append((accepted, -1 if broken[at + accepted] else choices[at + accepted]))
        at += 1 + len(mine)
    return outcomes
