"""Candidates and the logit rows that belong to them, carried together from draft to verification.

A row count that does not match the candidates and rows that live on another device are faults of engines that pass the two
along separately. Here `Candidates` decides which rows the target's pass computes (`segment`) and takes its own rows out of what
comes back (`rows_of`); there is no other way from the target to verification, so neither fault can be written down.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from draftproof.models.kv import SequenceKV
from draftproof.models.rows import Segment, TargetOutput


@dataclass(frozen=True)
class Candidates:
    """The anchor and the draft tokens of one sequence in a step.

    Attributes:
        token_ids: int64 ``[n]``, n >= 1; entry 0 is the anchor. On the target's device.
        first_row: which logit row of the pass belongs to the anchor; row ``first_row + t`` to candidate t.
    """

    token_ids: torch.Tensor
    first_row: int

    @property
    def count(self) -> int:
        return self.token_ids.shape[0]

    @property
    def matrix(self) -> torch.Tensor:
        """The candidates as verification takes them, ``[1, n]``."""
        return self.token_ids[None]

    def segment(self, kv: SequenceKV) -> Segment:
        """The candidates' part of the pass: every candidate gets a logit row."""
        return Segment(kv, self.token_ids, 0)

    def rows_of(self, output: TargetOutput) -> torch.Tensor:
        """This sequence's logit rows, ``[n, vocab]``."""
        return output.logits[self.first_row : self.first_row + self.count]

    def features_of(self, output: TargetOutput) -> torch.Tensor | None:
        """This sequence's context features, ``[n, num_taps * hidden]``; every row of a decode pass is a candidate."""
        return (
            None if output.features is None else output.features[self.first_row : self.first_row + self.count]
        )


def lay_out(anchors: Items[int], drafts: Items[torch.Tensor], device: torch.device) -> list[Candidates]:
    """Candidates of several sequences for one pass, rows in order.

    Args:
        anchors: the last committed token of each sequence.
        drafts: int64 ``[k]`` each, k >= 0, one for each anchor.
        device: the target's.
    """
    laid, row = [], 0
    for anchor, draft in zip(anchors, drafts, strict=True):
        tokens = torch.cat([torch.tensor([anchor], device=device), draft.to(device)])
        laid.append(Candidates(tokens, row))
        row += tokens.shape[0]
    return laid
