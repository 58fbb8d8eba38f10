"""What goes into a forward pass of the target, and what comes out: flat rows, grouped by sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftproof.models.kv import SequenceKV


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one sequence in a pass.

    Attributes:
        kv: the sequence's keys and values; the tokens are appended behind ``kv.length``.
        token_ids: int64 ``[n]``, n >= 1.
        logits_from: index of the first token whose logit row is wanted: 0 for all (verify), ``n - 1`` for the last, n for none.
    """

    kv: SequenceKV
    token_ids: torch.Tensor
    logits_from: int

    @property
    def count(self) -> int:
        return self.token_ids.shape[0]


@dataclass(frozen=True)
class TargetOutput:
    """What one pass gives.

    Attributes:
        logits: ``[sum of wanted rows, vocab]``, in the order of the segments and of the tokens within; the target's dtype.
        features: ``[rows, num_taps * hidden]`` context features of every token, or None when no taps were asked for.
        features_home: a larger tensor that `features` are rows of, shared with the passes before and after; None when they
            have their memory to themselves.
        features_from: the first of those rows.
    """

    logits: torch.Tensor
    features: torch.Tensor | None
    features_home: torch.Tensor | None = None
    features_from: int = 0
