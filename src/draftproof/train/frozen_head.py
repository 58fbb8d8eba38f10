"""Softmax losses behind a frozen LM head, with their gradient computed in the same pass.

A head that is not trained needs no gradient of its own; of the logits nothing has to outlive the rows they belong to. So each
tile of rows goes through product, softmax, loss and gradient at once, and what is kept for the backward pass is
``d loss / d hidden``, as small as the hidden states themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

_TILE_BYTES = 8 << 20
"""Logits of a tile in float32. Smaller ones waste the products, larger ones gain nothing more (measured at 7,183 columns)."""


@dataclass(frozen=True)
class HeadRows:
    """Rows that go through the head.

    Attributes:
        hidden: ``[R, hidden]``.
        labels: int64 ``[R]``, columns of the head.
        weights: float32 ``[R]``, of each row's loss.
        top_ids: int64 ``[R, k]``, columns of the head, -1 for one that it has not (it joins the rest); or None.
        top_probs: float32 ``[R, k]``, the target's probabilities of them, summing to at most 1; or None.
    """

    hidden: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    top_ids: torch.Tensor | None = None
    top_probs: torch.Tensor | None = None

    def renamed(self, labels: torch.Tensor, top_ids: torch.Tensor | None) -> HeadRows:
        """The same rows with other column numbers."""
        return HeadRows(self.hidden, labels, self.weights, top_ids, self.top_probs)

    def chosen(self, index: torch.Tensor) -> HeadRows:
        """Some of the rows."""
        return HeadRows(
            self.hidden[index],
            self.labels[index],
            self.weights[index],
            None if self.top_ids is None else self.top_ids[index],
            None if self.top_probs is None else self.top_probs[index],
        )


@dataclass(frozen=True)
class HeadSettings:
    """What is done with the logits.

    Attributes:
        alpha: weight in [0, 1] of the distillation part, where rows have likeliest tokens.
        multiplier: factor on the head's output.
        softcap: ``c`` of ``c * tanh(logits / c)`` on the product, or None.
    """

    alpha: float = 0.0
    multiplier: float = 1.0
    softcap: float | None = None


def head_loss(
    rows: HeadRows, head: torch.Tensor, settings: HeadSettings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weighted sum of the rows' losses over the columns of ``head [columns, hidden]``.

    A row's loss is ``(1 - alpha) * -log q(label) + alpha * KL``, where KL is between the target's and the drafter's
    distribution, both with all but the listed likeliest tokens taken together as one outcome.

    Returns:
        The sum (scalar float32), whether each row's likeliest column is its label (bool ``[R]``; the first of equal ones),
        and the unweighted sum of ``-log q(label)``.
    """
    total, right, nats = _HeadLoss.apply(
        rows.hidden, rows.labels, rows.weights, rows.top_ids, rows.top_probs, head, settings
    )
    return total, right, nats


def plain_head_loss(
    rows: HeadRows, head: torch.Tensor, settings: HeadSettings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`head_loss` in plain operations under autograd: what it is held against."""
    logits = rows.hidden @ head.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) * settings.multiplier
    if settings.softcap is not None:
        logits = (logits / settings.softcap).tanh() * settings.softcap
    logq = logits.log_softmax(-1)
    nats = -logq.gather(1, rows.labels[:, None]).squeeze(1)
    loss = nats
    if settings.alpha > 0 and rows.top_ids is not None and rows.top_probs is not None:
        known = rows.top_ids >= 0
        probs = rows.top_probs * known
        listed = logq.gather(1, rows.top_ids.clamp(min=0))
        rest = (1 - probs.sum(-1)).clamp(min=0)
        others = torch.zeros_like(logq, dtype=torch.bool)
        others.scatter_add_(1, rows.top_ids.clamp(min=0), known)
        own_rest = logq.masked_fill(others, -torch.inf).logsumexp(-1)
        divergence = (
            (probs.xlogy(probs) - probs * listed * known).sum(-1) + rest.xlogy(rest) - rest * own_rest
        )
        loss = (1 - settings.alpha) * nats + settings.alpha * divergence
    right = logits.argmax(-1) == rows.labels
    return (loss * rows.weights).sum(), right, nats.detach().sum()


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
        top_ids: torch.Tensor | None,
        top_probs: torch.Tensor | None,
        head: torch.Tensor,
        settings: HeadSettings,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = HeadRows(hidden, labels, weights, top_ids, top_probs)
        wanted = hidden.requires_grad
        with torch.autocast(hidden.device.type, enabled=False):
            total, right, nats, slope = _tiled(rows, head, settings, wanted)
        if wanted:
            ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(right, nats)
        return total, right, nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *unused: Any) -> tuple[torch.Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * grad.to(slope.dtype), None, None, None, None, None, None


def _tiled(
    rows: HeadRows, head: torch.Tensor, settings: HeadSettings, wanted: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    count, columns = rows.labels.shape[0], head.shape[0]
    kind = torch.promote_types(rows.hidden.dtype, torch.float32)
    tile = max(16, _TILE_BYTES // (4 * columns) // 16 * 16)
    if rows.hidden.device.type != "cpu":
        tile = max(tile, 1024)
    total = torch.zeros((), dtype=kind, device=head.device)
    nats = torch.zeros((), dtype=kind, device=head.device)
    right = torch.empty(count, dtype=torch.bool, device=head.device)
    slope = torch.empty_like(rows.hidden) if wanted else rows.hidden.new_empty(0)
    for first in range(0, count, tile):
        part = slice(first, min(first + tile, count))
        piece = HeadRows(
            rows.hidden[part],
            rows.labels[part],
            rows.weights[part],
            None if rows.top_ids is None else rows.top_ids[part],
            None if rows.top_probs is None else rows.top_probs[part],
        )
        loss, right[part], own = _tile(piece, head, settings, kind, slope[part] if wanted else None)
        total += loss
        nats += own
    return total, right, nats, slope


def _tile(
    rows: HeadRows,
    head: torch.Tensor,
    settings: HeadSettings,
    kind: torch.dtype,
    slope: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss, agreement and nats of some rows; their gradient goes into `slope`."""
    product = rows.hidden @ head.T
    labels = rows.labels[:, None]
    logits = product.to(kind)
    bend = None
    if settings.multiplier != 1.0:
        logits = logits * settings.multiplier
    if settings.softcap is not None:
        bent = (logits / settings.softcap).tanh()
        logits, bend = bent * settings.softcap, 1 - bent.square()
    peak, wanted = logits.amax(-1, keepdim=True), logits.gather(1, labels)
    right = _first_of_equals(product, rows.labels, (wanted == peak).squeeze(1))
    # In place from here on: the logits become probabilities, and these the gradient.
    likely = logits.sub_(peak).exp_()
    mass = likely.sum(-1, keepdim=True)
    nats = (peak - wanted + mass.log()).squeeze(1)
    alpha, loss, unit = 0.0, nats, rows.weights[:, None] * settings.multiplier
    if settings.alpha > 0 and rows.top_ids is not None and rows.top_probs is not None:
        alpha = settings.alpha
        divergence = _distilled(likely.div_(mass), rows.top_ids, rows.top_probs, alpha)
        loss = (1 - alpha) * nats + alpha * divergence
        likely.mul_(unit)
    else:
        likely.mul_(unit / mass)
    if slope is not None:
        likely.scatter_add_(1, labels, ((alpha - 1) * unit).to(kind))
        if bend is not None:
            likely.mul_(bend)
        torch.mm(likely.to(head.dtype), head, out=slope)
    return (loss * rows.weights).sum(), right, nats.sum()


def _first_of_equals(product: torch.Tensor, labels: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
    """Whether each row's argmax is its label, given whether nothing is higher: only these rows need a look at ties."""
    right = torch.zeros_like(highest)
    some = highest.nonzero().flatten()
    right[some] = product[some].argmax(-1) == labels[some]
    return right


def _distilled(
    likely: torch.Tensor, top_ids: torch.Tensor, top_probs: torch.Tensor, alpha: float
) -> torch.Tensor:
    """KL from the target, over its likeliest tokens and the rest: ``[R]``.

    ``likely [R, columns]``, the drafter's q, becomes the gradient of the row's loss but for the label's part: ``q - alpha * p``
    at a listed token and ``q * (1 - alpha * rest_p / rest_q)`` at any other.
    """
    known = top_ids >= 0
    places = top_ids.clamp(min=0)
    probs = top_probs.to(likely.dtype) * known
    listed = likely.gather(1, places) * known
    rest = (1 - probs.sum(-1, keepdim=True)).clamp(min=0)
    # Summed without the listed ones, not 1 less their sum: that would be rounding where they are all but everything.
    own_rest = likely.scatter_add_(1, places, -listed).sum(-1, keepdim=True)
    tiny = torch.finfo(likely.dtype).tiny
    near = torch.xlogy(probs, probs) - torch.xlogy(probs, listed.clamp(min=tiny))
    far = torch.xlogy(rest, rest) - torch.xlogy(rest, own_rest.clamp(min=tiny))
    likely.mul_(1 - alpha * rest / own_rest.clamp(min=tiny)).scatter_add_(1, places, listed - alpha * probs)
    return (near.sum(-1, keepdim=True) + far).squeeze(1)
