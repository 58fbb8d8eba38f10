"""A drafter and its loss as one module: whatever spreads modules over processes then sees a single forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from draftproof.train.blocks import BlockBatch
from draftproof.train.loss import BlockMetrics, LossSettings, ReducedVocabulary, block_loss
from draftproof.train.model import TrainableDrafter


class LossPass(nn.Module):
    """Forward pass and loss of a batch.

    Args:
        drafter: the model; its weights are all this module has.
        loss: what is minimised.
        vocabulary: over which the loss's softmax runs; None for all.
    """

    def __init__(
        self, drafter: TrainableDrafter, loss: LossSettings, vocabulary: ReducedVocabulary | None
    ) -> None:
        super().__init__()
        self.drafter = drafter
        self._loss, self._vocabulary = loss, vocabulary

    def forward(self, batch: BlockBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The scalar loss, and `Figures` of the batch as float64 ``[3 + 2 * (B - 1)]``, which add up over passes."""
        result = block_loss(self.drafter, self.drafter(batch), batch, self._loss, self._vocabulary)
        return result.loss, summed(float(result.loss.detach()), result.metrics)


@dataclass(frozen=True)
class Figures:
    """Of one or several passes together.

    Attributes:
        loss: mean over the passes.
        accepted: acceptance length along the answers, bonus included.
        accuracy: share of right guesses by slot.
    """

    loss: float
    accepted: float
    accuracy: tuple[float, ...]


def summed(loss: float, metrics: BlockMetrics) -> torch.Tensor:
    """What `figures_of` reads: loss, accepted guesses, whole blocks, right guesses by slot, guesses by slot."""
    head = torch.tensor([loss, metrics.accepted, metrics.blocks], dtype=torch.float64)
    return torch.cat((head, metrics.right.double(), metrics.seen.double()))


def figures_of(sums: torch.Tensor, passes: int) -> Figures:
    """The figures of so many passes, from the sum of their tensors."""
    loss, accepted, blocks, *counts = sums.tolist()
    slots = len(counts) // 2
    accuracy = tuple(
        right / seen if seen else 0.0 for right, seen in zip(counts[:slots], counts[slots:], strict=True)
    )
    return Figures(loss / passes, 1.0 + accepted / max(blocks, 1.0), accuracy)
