"""Turns a Hugging Face causal LM into a row-invariant one by swapping its operators in place."""

from __future__ import annotations

import functools

import torch
from torch import nn

from draftproof.models.elementwise import ElementwiseModule
from draftproof.models.linear import Route, RowInvariantLinear
from draftproof.models.rotary import RotaryTable


@functools.cache
def _activations() -> tuple[type, ...]:
    """Transformers' own activation modules."""
    from transformers.activations import ACT2CLS

    return tuple({entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()})


def swap_operators(model: nn.Module, route: Route) -> None:
    """Replace every linear, activation and rotary module below `model` by its row-invariant twin.

    Norms and plain arithmetic stay: PyTorch reduces each of their rows on its own, in one order.

    Args:
        model: a loaded causal LM; changed in place. Packed weights replace the originals, so memory does not double.
        route: how the linears compute.
    """
    for parent in list(model.modules()):
        if isinstance(parent, (RowInvariantLinear, ElementwiseModule, RotaryTable)):
            continue
        for name, child in list(parent.named_children()):
            twin = _twin(child, route)
            if twin is not None:
                setattr(parent, name, twin)


def _twin(module: nn.Module, route: Route) -> nn.Module | None:
    from transformers.pytorch_utils import Conv1D

    if type(module) is nn.Linear:
        return RowInvariantLinear(module.weight, module.bias, route)
    if isinstance(module, Conv1D):
        weight, bias = module.weight.t().contiguous(), module.bias  # stored transposed, unlike a linear
        return RowInvariantLinear(weight, bias, route)
    if isinstance(module, _activations()):
        return ElementwiseModule(module)
    if type(module).__name__.endswith("RotaryEmbedding") and _has_frequencies(module):
        return RotaryTable(module)
    return None


def _has_frequencies(module: nn.Module) -> bool:
    return any(
        name.endswith("inv_freq") and isinstance(buffer, torch.Tensor)
        for name, buffer in module.named_buffers()
    )
