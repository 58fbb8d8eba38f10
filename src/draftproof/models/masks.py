"""Learns which attention masks a model builds, from one probing pass.

draftproof's attention makes its own mask from the window a layer passes along. Some models pass none and put the window
into the mask alone, which would be lost. So while probing, Transformers asks us to build the masks, and we note the windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from draftproof.errors import ModelError
from draftproof.models.attention import NAME, row_invariant_attention

_PROBE = f"{NAME}_probe"
_NOTES = "draftproof_mask_windows"


def _note_mask(
    *positional: Any,
    config: Any = None,
    local_size: int | None = None,
    mask_function: Any = None,
    **others: Any,
) -> None:
    """Called by Transformers in place of building a mask. No mask comes of it.

    Raises:
        ModelError: DP253, the mask lets a token see a later one.
    """
    del positional, others
    first, second = torch.tensor(0), torch.tensor(1)
    if mask_function is not None and bool(mask_function(first, first, first, second)):
        raise ModelError(
            "DP253",
            "the model's attention looks ahead (it is bidirectional); draftproof decodes causal models",
        )
    notes = getattr(config, _NOTES, None)
    if notes is not None:
        notes.append(local_size)


@contextmanager
def noting_masks(model: nn.Module) -> Iterator[list[int | None]]:
    """While active, collects the window (None for none) of every mask that `model` asks for."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_PROBE, row_invariant_attention)
    AttentionMaskInterface.register(_PROBE, _note_mask)
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    notes: list[int | None] = []
    for config in configs.values():
        if getattr(config, "_attn_implementation", None) == NAME:
            config._attn_implementation = _PROBE  # type: ignore[union-attr]
            object.__setattr__(config, _NOTES, notes)
    try:
        yield notes
    finally:
        for config in configs.values():
            if getattr(config, "_attn_implementation", None) == _PROBE:
                config._attn_implementation = NAME  # type: ignore[union-attr]
                object.__delattr__(config, _NOTES)
