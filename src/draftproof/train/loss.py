"""The loss of a batch of blocks, and how far its drafts would have been accepted.

Slot k of a block counts ``exp(-(k - 1) / gamma)``: an error early in a block makes the rest of it worthless. The LM head is
frozen, so its whole part in the backward pass is one product, which is done together with the forward one (`frozen_head`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from draftproof.errors import RequestError
from draftproof.models.drafters.config import DrafterConfig
from draftproof.train.blocks import BlockBatch
from draftproof.train.frozen_head import HeadRows, HeadSettings, head_loss


class Headed(Protocol):
    """What the loss needs of a drafter; `TrainableDrafter` has it."""

    config: DrafterConfig

    def head(self, like: torch.Tensor, vocab: torch.Tensor | None = None) -> torch.Tensor: ...


@dataclass(frozen=True)
class LossSettings:
    """What is minimised.

    Attributes:
        gamma: slot k counts ``exp(-(k - 1) / gamma)``.
        distillation: alpha in [0, 1]: how much of the loss is the divergence from the target's own distribution (its k
            likeliest tokens, and all others together as one); the rest is cross-entropy on the response's tokens.
    """

    gamma: float = 2.0
    distillation: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise RequestError("DP517", f"gamma must be above 0, got {self.gamma}")
        if not 0 <= self.distillation <= 1:
            raise RequestError("DP517", f"distillation must lie in [0, 1], got {self.distillation}")


class ReducedVocabulary:
    """The token ids over which the loss's softmax runs for rows whose label is among them.

    The others' softmax runs over the whole vocabulary, so no row is lost; but the first kind does not push down tokens outside,
    which is the price of the speed.

    Args:
        ids: distinct token ids, in any order.
        vocab_size: of the target.

    Raises:
        RequestError: DP517, there is none, or one is out of range or listed twice.
    """

    def __init__(self, ids: Sequence[int] | torch.Tensor, vocab_size: int) -> None:
        listed = torch.as_tensor(ids, dtype=torch.int64).flatten()
        self.ids = listed.unique()
        if not listed.numel() or self.ids.numel() != listed.numel():
            raise RequestError(
                "DP517", f"a reduced vocabulary is a list of distinct ids, got {listed.numel()} with repeats"
            )
        if int(self.ids[0]) < 0 or int(self.ids[-1]) >= vocab_size:
            raise RequestError("DP517", f"a reduced vocabulary holds ids of 0 to {vocab_size - 1} only")
        self._places = torch.full((vocab_size,), -1, dtype=torch.int64)
        self._places[self.ids] = torch.arange(self.ids.numel())
        self._heads: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def __len__(self) -> int:
        return self.ids.numel()

    def places(self, ids: torch.Tensor) -> torch.Tensor:
        """Where ids lie in `ids`, -1 for those that do not; the shape stays."""
        if self._places.device != ids.device:
            self._places = self._places.to(ids.device)
        return self._places[ids]

    def head(self, model: Headed, like: torch.Tensor) -> torch.Tensor:
        """The head's rows of `ids`, kept from call to call."""
        key = (like.device, like.dtype)
        if key not in self._heads:
            self._heads[key] = model.head(like, self.ids.to(like.device)).contiguous()
        return self._heads[key]


def occurring_ids(outputs: Sequence[Sequence[int]]) -> list[int]:
    """The distinct token ids of all responses, ascending: the usual reduced vocabulary."""
    return sorted({token for output in outputs for token in output})


@dataclass(frozen=True)
class BlockMetrics:
    """Counts that add up over batches. Argmaxes are over the vocabulary that the loss was computed over.

    Attributes:
        right: int64 ``[B-1]``, slots whose likeliest token is the label.
        seen: int64 ``[B-1]``, slots with a label.
        accepted: over blocks with all labels, how many leading slots were right, summed.
        blocks: such blocks.
        cross_entropy: nats of the labels, unweighted, summed over the slots with a label.
    """

    right: torch.Tensor
    seen: torch.Tensor
    accepted: int
    blocks: int
    cross_entropy: float

    def __add__(self, other: BlockMetrics) -> BlockMetrics:
        return BlockMetrics(
            self.right + other.right,
            self.seen + other.seen,
            self.accepted + other.accepted,
            self.blocks + other.blocks,
            self.cross_entropy + other.cross_entropy,
        )

    @property
    def accuracy(self) -> list[float]:
        """By slot, from slot 1 on; 0 where none was seen."""
        return (self.right / self.seen.clamp(min=1)).tolist()

    @property
    def acceptance_length(self) -> float:
        """Tokens a step would commit along the responses, bonus included, drafting whole blocks."""
        return 1.0 + self.accepted / max(self.blocks, 1)


@dataclass(frozen=True)
class BlockLoss:
    """The loss of one batch.

    Attributes:
        loss: scalar float32, the weighted mean, to be minimised.
        weight: scalar float32, the sum of the weights: means of several batches are exact when weighed by it.
        metrics: counts.
    """

    loss: torch.Tensor
    weight: torch.Tensor
    metrics: BlockMetrics


def block_loss(
    model: Headed,
    hidden: torch.Tensor,
    batch: BlockBatch,
    settings: LossSettings,
    vocabulary: ReducedVocabulary | None = None,
) -> BlockLoss:
    """The loss of ``hidden [A, B-1, hidden]``, what the drafter made of `batch`.

    Args:
        model: whose head and logit settings count (the drafter itself, not its wrapper).
        hidden: its output.
        batch: with labels.
        settings: what is minimised.
        vocabulary: over which the softmax runs; None for all.

    Raises:
        RequestError: DP517, distillation without the target's likeliest tokens.
    """
    alpha = settings.distillation
    if alpha > 0 and (batch.top_ids is None or batch.top_logprobs is None):
        raise RequestError("DP517", "distillation needs features that were cached with top_k above 0")
    valid = batch.valid
    slots = torch.arange(valid.shape[1], device=valid.device)
    by_slot = torch.exp(-slots / settings.gamma)
    weights = by_slot.expand_as(valid)[valid]
    rows = HeadRows(
        hidden=hidden[valid],
        labels=batch.labels[valid],
        weights=weights,
        top_ids=batch.top_ids[valid] if alpha > 0 and batch.top_ids is not None else None,
        top_probs=batch.top_logprobs[valid].exp() if alpha > 0 and batch.top_logprobs is not None else None,
    )
    head = HeadSettings(alpha, model.config.output_multiplier, model.config.softcap)
    total, right, entropy = _over_vocabulary(model, rows, head, vocabulary)
    weight = weights.sum()
    agreed = torch.zeros_like(valid)
    agreed[valid] = right
    return BlockLoss(total / weight, weight, _metrics(agreed, valid, float(entropy)))


def _over_vocabulary(
    model: Headed, rows: HeadRows, settings: HeadSettings, vocabulary: ReducedVocabulary | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weighted loss, whether each row's likeliest token is its label, and the labels' nats."""
    if vocabulary is None:
        return head_loss(rows, model.head(rows.hidden), settings)
    places = vocabulary.places(rows.labels)
    inside = places >= 0
    top = None if rows.top_ids is None else vocabulary.places(rows.top_ids)
    reduced = rows.renamed(places, top)
    if bool(inside.all()):
        return head_loss(reduced, vocabulary.head(model, rows.hidden), settings)
    near, far = inside.nonzero().flatten(), (~inside).nonzero().flatten()
    total, right, entropy = head_loss(rows.chosen(far), model.head(rows.hidden), settings)
    agreed = torch.empty_like(inside)
    agreed[far] = right
    if near.numel():
        more, right, nats = head_loss(reduced.chosen(near), vocabulary.head(model, rows.hidden), settings)
        total, entropy = total + more, entropy + nats
        agreed[near] = right
    return total, agreed, entropy


def _metrics(agreed: torch.Tensor, valid: torch.Tensor, entropy: float) -> BlockMetrics:
    whole = valid.all(1)
    return BlockMetrics(
        right=agreed.sum(0).cpu(),
        seen=valid.sum(0).cpu(),
        accepted=int(agreed[whole].long().cumprod(1).sum()),
        blocks=int(whole.sum()),
        cross_entropy=entropy,
    )
