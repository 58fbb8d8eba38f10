"""A training batch: several sequences' context features, and the blocks that are denoised over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from draftproof.errors import RequestError
from draftproof.train.anchors import block_labels, choose_anchors

if TYPE_CHECKING:
    from draftproof.train.features import Sample


@dataclass(frozen=True)
class BlockBatch:
    """S sequences with T context rows and A blocks of B slots in all, sequence after sequence, without padding.

    Attributes:
        features: ``[T, num_taps * hidden]``, context features of each sequence from its first token on, as far as its last
            anchor sees (the token before it), in the target's dtype.
        positions: int64 ``[T]``, the rows' positions in their sequences.
        row_counts: T by sequence, so that rows of a sequence are found without asking the device.
        anchor_positions: int64 ``[A]``, ascending within a sequence.
        anchor_counts: A by sequence.
        block_ids: int64 ``[A, B]``: the anchor's token and B - 1 mask tokens.
        labels: int64 ``[A, B-1]``: the token at slots 1 to B - 1; 0 where there is none.
        valid: bool ``[A, B-1]``: whether there is one, so that the slot counts in the loss.
        top_ids: int64 ``[A, B-1, k]``, the target's k likeliest tokens at each slot, or None.
        top_logprobs: float32 ``[A, B-1, k]``, their log-probabilities, or None.
    """

    features: torch.Tensor
    positions: torch.Tensor
    row_counts: tuple[int, ...]
    anchor_positions: torch.Tensor
    anchor_counts: tuple[int, ...]
    block_ids: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None

    @property
    def num_anchors(self) -> int:
        return self.block_ids.shape[0]

    @property
    def block_size(self) -> int:
        return self.block_ids.shape[1]

    @property
    def num_labels(self) -> int:
        """Slots that count in the loss."""
        return int(self.valid.sum())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> BlockBatch:
        """The same on a device."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return BlockBatch(
            features=moved(self.features),
            positions=moved(self.positions),
            row_counts=self.row_counts,
            anchor_positions=moved(self.anchor_positions),
            anchor_counts=self.anchor_counts,
            block_ids=moved(self.block_ids),
            labels=moved(self.labels),
            valid=moved(self.valid),
            top_ids=None if self.top_ids is None else moved(self.top_ids),
            top_logprobs=None if self.top_logprobs is None else moved(self.top_logprobs),
        )


def make_batch(
    samples: Sequence[Sample],
    anchors_per_sequence: int,
    block_size: int,
    mask_token_id: int,
    generator: torch.Generator | None = None,
) -> BlockBatch:
    """Draw anchors in every sample and lay out their blocks.

    A sample whose response is too short for a single label has no anchor and adds nothing.

    Args:
        samples: the sequences, with features of the taps that the drafter is trained for.
        anchors_per_sequence: at most so many blocks of each.
        block_size: the anchor and its mask slots, at least 2.
        mask_token_id: what stands in the mask slots.
        generator: draws the anchors.

    Raises:
        RequestError: DP512, a sample contradicts itself or the others; DP513, no sample has a response to learn from.
    """
    anchors = [
        choose_anchors(sample.response_start, sample.token_ids.shape[0], anchors_per_sequence, generator)
        for sample in samples
    ]
    return lay_out(samples, anchors, block_size, mask_token_id)


def lay_out(
    samples: Sequence[Sample], anchors: Sequence[torch.Tensor], block_size: int, mask_token_id: int
) -> BlockBatch:
    """The batch of given anchors, int64 ``[n]`` ascending for each sample; see `make_batch`.

    Raises:
        RequestError: DP512, a sample contradicts itself or the others; DP513, there is no anchor at all.
    """
    _check(samples)
    with_top = bool(samples) and all(sample.top_ids is not None for sample in samples)
    parts = [
        _part(sample, chosen, block_size, with_top)
        for sample, chosen in zip(samples, anchors, strict=True)
        if chosen.numel()
    ]
    if not parts:
        raise RequestError("DP513", f"none of the {len(samples)} samples has a response token to learn from")
    anchor_positions = torch.cat([part.anchors for part in parts])
    block_ids = torch.full((anchor_positions.shape[0], block_size), mask_token_id, dtype=torch.int64)
    block_ids[:, 0] = torch.cat([part.anchor_ids for part in parts])
    counts = tuple(part.features.shape[0] for part in parts)
    return BlockBatch(
        features=torch.cat([part.features for part in parts]),
        positions=torch.cat([torch.arange(count) for count in counts]),
        row_counts=counts,
        anchor_positions=anchor_positions,
        anchor_counts=tuple(part.anchors.shape[0] for part in parts),
        block_ids=block_ids,
        labels=torch.cat([part.labels for part in parts]),
        valid=torch.cat([part.valid for part in parts]),
        top_ids=_joined([part.top_ids for part in parts]),
        top_logprobs=_joined([part.top_logprobs for part in parts]),
    )


@dataclass(frozen=True)
class _Part:
    """What one sequence adds to a batch."""

    features: torch.Tensor
    anchors: torch.Tensor
    anchor_ids: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor
    top_ids: torch.Tensor | None
    top_logprobs: torch.Tensor | None


def _part(sample: Sample, anchors: torch.Tensor, block_size: int, with_top: bool) -> _Part:
    labels, valid = block_labels(sample.token_ids, anchors, block_size)
    top_ids = top_logprobs = None
    if with_top and sample.top_ids is not None and sample.top_logprobs is not None:
        # The first row is the response's first token; slots before it or past the end do not count and repeat a row.
        rows = anchors[:, None] + torch.arange(1, block_size) - sample.response_start
        rows = rows.clamp(0, sample.top_ids.shape[0] - 1)
        top_ids, top_logprobs = sample.top_ids[rows].long(), sample.top_logprobs[rows].float()
    return _Part(
        # No anchor sees itself or what follows, so the last one bounds what is needed.
        features=sample.features[: int(anchors[-1])],
        anchors=anchors,
        anchor_ids=sample.token_ids[anchors],
        labels=labels,
        valid=valid,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )


def _joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors) if len(tensors) == len(parts) else None


def _check(samples: Sequence[Sample]) -> None:
    for index, sample in enumerate(samples):
        tokens, features = sample.token_ids.shape[0], sample.features
        if features.ndim != 2 or features.shape[0] != tokens:
            shape = tuple(features.shape)
            raise RequestError(
                "DP512", f"sample {index}: {tokens} tokens need as many feature rows, got shape={shape}"
            )
        if features.shape[1] != samples[0].features.shape[1] or features.dtype != samples[0].features.dtype:
            raise RequestError(
                "DP512",
                f"sample {index}: features of width {features.shape[1]} in {features.dtype}, but sample 0 has "
                f"{samples[0].features.shape[1]} in {samples[0].features.dtype}",
            )
        if not 0 <= sample.response_start <= tokens:
            raise RequestError(
                "DP512",
                f"sample {index}: response_start {sample.response_start} lies outside its {tokens} tokens",
            )
        for name, top in (("top_ids", sample.top_ids), ("top_logprobs", sample.top_logprobs)):
            if top is not None and top.shape[0] != tokens - sample.response_start:
                raise RequestError(
                    "DP512",
                    f"sample {index}: {tokens - sample.response_start} response tokens need as many rows of {name}, "
                    f"got {top.shape[0]}",
                )
