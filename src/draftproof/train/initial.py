"""Where training starts: as the target's own last layers, reading the target's last tap.

With so few steps as a CPU affords, the start decides. The drafter's layers are the target's last ones, `fc` passes the last tap
through, and the gains of the drafter's query and key norms, which most targets do not have, are the sizes that the target's
queries and keys really have. So attention over the context begins as the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from draftproof.models.drafters.weights import expected_shapes
from draftproof.train.layout import DrafterShape
from draftproof.train.target_weights import TargetWeights, Tensors

if TYPE_CHECKING:
    from draftproof.train.features import Sample

_MOST_ROWS = 2048
"""Feature rows that magnitudes are measured on."""
_PROJECTIONS = ("q", "k", "v")


def initial_tensors(
    shape: DrafterShape,
    target: TargetWeights,
    samples: Sequence[Sample] = (),
    seed: int = 0,
    noise: float = 0.1,
) -> Tensors:
    """Weights to start from, float32, by their published names.

    Args:
        shape: of the drafter. What its layers cannot take from the target's (other sizes, fused or mixture layers, more layers
            than the target has) is random, scaled by fan-in.
        target: with as many of its last layers as the drafter has.
        samples: a few, on whose features the sizes of queries and keys are measured; without any, they are estimated.
        seed: of the noise.
        noise: size of what `fc` takes from the other taps and, in front of the last, from its own tap's other channels: random
            weights of deviation ``noise / sqrt(inputs)``.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _fresh(name, dims, generator)
        for name, dims in expected_shapes(shape.config(), shape.hidden_size).items()
    }
    width = target.hidden_size
    tensors["fc.weight"] *= noise
    if shape.hidden_size == width:
        tensors["fc.weight"][:, -width:] += torch.eye(width)
    if target.final_norm is not None:
        _take(tensors, "norm.weight", target.final_norm)
    layers = target.layers[-shape.num_layers :]
    first = shape.num_layers - len(layers)
    hidden = _hidden(samples, width, generator)
    for index, layer in enumerate(layers, first):
        for name, weight in layer.items():
            _take(tensors, f"layers.{index}.{name}", weight)
        _set_gains(tensors, f"layers.{index}.self_attn.", layer, shape, target, hidden)
    _share_norm(tensors, [f"layers.{index}." for index in range(first, shape.num_layers)])
    return tensors


def _take(tensors: Tensors, name: str, weight: torch.Tensor) -> None:
    """Put a target's weight in place where there is one of that shape."""
    if name in tensors and tensors[name].shape == weight.shape:
        tensors[name] = weight.detach().to(torch.float32, copy=True)


def _fresh(name: str, dims: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(dims)
    if len(dims) == 1:
        return torch.zeros(dims)
    return torch.randn(dims, generator=generator) * dims[-1] ** -0.5


def _hidden(samples: Sequence[Sample], width: int, generator: torch.Generator) -> torch.Tensor:
    """Hidden states near the target's end, normed to a root mean square of 1: ``[n, hidden]``."""
    rows = [sample.features[:, -width:].float() for sample in samples]
    if not rows:
        return torch.randn(256, width, generator=generator)
    together = torch.cat(rows)
    stride = -(-together.shape[0] // _MOST_ROWS)
    return functional.rms_norm(together[::stride], (width,))


def _set_gains(
    tensors: Tensors,
    prefix: str,
    layer: Tensors,
    shape: DrafterShape,
    target: TargetWeights,
    hidden: torch.Tensor,
) -> None:
    """Gains of the query and key norm: the target's own, else the sizes that its queries and keys have.

    The drafter's scores are scaled by ``head_dim ** -0.5``; where the target scales otherwise, the queries make up for it.
    """
    scale = target.score_scale * shape.head_dim**0.5
    for part, factor in (("q", scale), ("k", 1.0)):
        gain = f"{prefix}{part}_norm.weight"
        own = layer.get(f"self_attn.{part}_norm.weight")
        weight = layer.get(f"self_attn.{part}_proj.weight")
        if own is not None and own.shape == tensors[gain].shape:
            tensors[gain] = own.float() * factor
        elif weight is not None and tensors[f"{prefix}{part}_proj.weight"].shape == weight.shape:
            normed = hidden * layer.get("input_layernorm.weight", torch.ones(hidden.shape[1]))
            bias = layer.get(f"self_attn.{part}_proj.bias")
            heads = functional.linear(normed, weight.float(), None if bias is None else bias.float())
            size = heads.view(-1, shape.head_dim).square().mean(-1).sqrt().mean()
            tensors[gain] = torch.full((shape.head_dim,), float(size) * factor)


def _share_norm(tensors: Tensors, layers: Sequence[str]) -> None:
    """Give `hidden_norm` and the layers' input norms one factor, and let the projections behind them make up the difference.

    Context keys and values pass `hidden_norm` only, a block's own the layer's input norm, through the same matrices. With one
    factor for all, both are what the target would make of the same hidden state.
    """
    gains = [tensors[f"{layer}input_layernorm.weight"] for layer in layers]
    if not gains:
        return
    shared = torch.stack(gains).abs().mean(0)
    shared = shared.clamp(min=0.05 * float(shared.mean()) + 1e-6)
    tensors["hidden_norm.weight"] = shared.clone()
    for layer, gain in zip(layers, gains, strict=True):
        for part in _PROJECTIONS:
            tensors[f"{layer}self_attn.{part}_proj.weight"] *= gain / shared
        tensors[f"{layer}input_layernorm.weight"] = shared.clone()
