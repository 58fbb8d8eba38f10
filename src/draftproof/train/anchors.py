"""Where blocks are trained: anchors at random places of the response, their block and its labels."""

from __future__ import annotations

import torch


def choose_anchors(
    response_start: int, length: int, count: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Distinct positions that can be anchors, int64 ``[n]``, n <= count, ascending.

    An anchor is a committed token that the target has not processed yet, so the first is the prompt's last token (its block
    begins with the response's first token) and the last is the response's last token but one. Where there are no more than
    `count` places, all are taken; there may be none.

    Args:
        response_start: index of the response's first token.
        length: tokens of prompt and response.
        count: how many are wanted.
        generator: draws them; None for torch's own.
    """
    first = max(response_start - 1, 0)
    places = max(length - 1 - first, 0)
    if places <= count:
        return torch.arange(first, first + places)
    return (torch.randperm(places, generator=generator)[:count] + first).sort().values


def block_labels(
    token_ids: torch.Tensor, anchors: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each mask slot ought to predict.

    Slot k of a block stands at ``anchor + k`` and predicts the token there (in place, no shift).

    Args:
        token_ids: int64 ``[n]``, prompt and response.
        anchors: int64 ``[anchors]``.
        block_size: the anchor and its mask slots.

    Returns:
        Labels, int64 ``[anchors, block_size - 1]``, and whether each lies inside the text; where not, the label is 0.
    """
    at = anchors[:, None] + torch.arange(1, block_size)
    inside = at < token_ids.shape[0]
    return token_ids[at.clamp(max=token_ids.shape[0] - 1)].masked_fill(~inside, 0), inside
