"""The drafter's norms, rotations and gates, with their gradients written out.

Between products a training step on a CPU is bound by passes over memory. Autograd's own gradients of these chains take about
twice as many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from draftproof.models.drafters.rope import rotate

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


def compute_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of products under autocast, None without it."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * gain`` over the last dimension, computed in float32, in the dtype that products take.

    Source: Zhang and Sennrich 2019, "Root mean square layer normalization", equation 4.
    """
    return _RmsNorm.apply(x, gain, eps, compute_dtype(x.device) or x.dtype)


def norm_rotate(
    heads: torch.Tensor, gain: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float
) -> torch.Tensor:
    """Norm every head of ``[rows, heads, head_dim]`` and rotate it by its row's angle ``[rows, 1, head_dim]``."""
    return _NormRotate.apply(heads, gain, cos, sin, eps)


def gated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """``activation(gate) * up``."""
    return _ACTIVATIONS[activation](gate) * up


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _normed(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """``x / rms(x)`` and ``1 / rms(x)``; x is wide."""
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = (size.square_().div_(x.shape[-1])).add_(eps).rsqrt_()
    return x * inverse, inverse


def _norm_slope(slope: torch.Tensor, normed: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """The gradient of x from that of ``x / rms(x)``: what changes only x's length is taken out. Overwrites `slope`."""
    along = (slope * normed).mean(-1, keepdim=True)
    return slope.sub_(normed * along).mul_(inverse)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, gain: torch.Tensor, eps: float, dtype: torch.dtype
    ) -> torch.Tensor:
        normed, inverse = _normed(_wide(x), eps)
        ctx.save_for_backward(normed, inverse, gain)
        ctx.kind = x.dtype
        return (normed * gain).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normed, inverse, gain = ctx.saved_tensors
        slope = slope.to(normed.dtype)
        of_gain = (slope * normed).sum(0) if ctx.needs_input_grad[1] else None
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _norm_slope(slope * gain, normed, inverse).to(ctx.kind)
        if of_gain is not None:
            of_gain = of_gain.sum_to_size(gain.shape).to(gain.dtype)
        return of_x, of_gain, None, None


class _NormRotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, heads: torch.Tensor, gain: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float
    ) -> torch.Tensor:
        normed, inverse = _normed(_wide(heads), eps)
        ctx.save_for_backward(normed, inverse, gain, cos, sin)
        ctx.kind = heads.dtype
        return rotate(normed * gain, cos, sin).to(heads.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normed, inverse, gain, cos, sin = ctx.saved_tensors
        slope = slope.to(normed.dtype)
        # A rotation's transpose: the halves change places after the sine instead of before it.
        back = (slope * sin).roll(slope.shape[-1] // 2, -1).add_(slope * cos)
        of_gain = (back * normed).sum((0, 1)).to(gain.dtype)
        return _norm_slope(back.mul_(gain), normed, inverse).to(ctx.kind), of_gain, None, None, None
