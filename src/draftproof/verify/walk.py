"""Walking down the drafts level by level: the frame that the plain PyTorch form of every rule fills in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Level:
    """One level of the walk, over the sequences that still go on.

    Attributes:
        index: the level t; logit row t of a sequence judges candidate t + 1.
        sequences: int64 ``[k]``, which sequences.
        rows: int64 ``[k]``, their rows in the logits.
        drafts: int64 ``[k]``, the draft token to judge; 0 where there is none.
        drafted: bool ``[k]``, whether there is one; where not, the row only gives the bonus.
        walking: bool ``[k]``, false where a sequence has stopped but is carried along (off the CPU).
    """

    index: int
    sequences: torch.Tensor
    rows: torch.Tensor
    drafts: torch.Tensor
    drafted: torch.Tensor
    walking: torch.Tensor


Step = Callable[[Level], tuple[torch.Tensor, torch.Tensor]]
"""Judges one level: (accept bool ``[k]``, bonus int64 ``[k]`` for those that stop here)."""


def walk(candidates: torch.Tensor, draft_lens: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `step` until every sequence has stopped.

    On CPU only rows that are needed are looked at. On other devices asking which sequences have stopped would
    stall the device, so all are carried to the last level and the surplus is thrown away.

    Args:
        candidates: int64 ``[bs, n]``.
        draft_lens: int64 ``[bs]``, draft tokens of each sequence.
        step: the rule.

    Returns:
        accepted int32 ``[bs]``, bonus int64 ``[bs]``.
    """
    bs, n = candidates.shape
    device = candidates.device
    accepted = torch.zeros(bs, dtype=torch.int32, device=device)
    bonus = torch.zeros(bs, dtype=torch.int64, device=device)
    walking = torch.ones(bs, dtype=torch.bool, device=device)
    sequences = torch.arange(bs, device=device)
    for t in range(n):
        if device.type == "cpu":
            sequences = walking.nonzero()[:, 0]
            if sequences.numel() == 0:
                break
        drafted = draft_lens[sequences] > t
        drafts = candidates[sequences, min(t + 1, n - 1)]
        drafts = torch.where(drafted, drafts, 0)
        level = Level(t, sequences, sequences * n + t, drafts, drafted, walking[sequences])
        accept, choice = step(level)
        accept &= drafted
        stop = level.walking & ~accept
        bonus[sequences] = torch.where(stop, choice, bonus[sequences])
        accepted[sequences] += (level.walking & accept).to(torch.int32)
        walking[sequences] = level.walking & accept
    return accepted, bonus
