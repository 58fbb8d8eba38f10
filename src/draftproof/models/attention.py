"""draftproof's attention as Transformers calls it: row-invariant, over keys and values in pages.

How it is computed: `attention_reference` (the plain form) and `kernels` (the compiled one). Which rows belong to whom:
`attention_pass`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from draftproof.errors import ModelError
from draftproof.models.attention_pass import ForwardPass
from draftproof.models.attention_reference import AttentionRule

NAME = "draftproof_row_invariant"
"""Under which Transformers knows this attention (`attn_implementation`)."""
_WITHOUT_EFFECT = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "cache_position",
        "use_cache",
        "cache",
        "past_key_values",
        "is_causal",
    }
    | {
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "layer_idx",
        "training",
    }
)
"""What models pass to any attention and a causal one over stored keys has no use for."""


@dataclass
class AttentionSite:
    """What an attention module finds its pass through: one per target, attached to its modules. None between passes."""

    current: ForwardPass | None = None


def row_invariant_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention signature: `query` ``[1, heads, rows, dim]``, `key` and `value` ``[1, kv_heads, rows, dim]``.

    `others` is what Transformers passes along for other implementations. A model that asks for something there that would
    change the result is refused (at load time, since loading probes the model).
    """
    del dropout
    _refuse_unknown(
        module, others if attention_mask is None else {**others, "a mask of its own": attention_mask}
    )
    site = getattr(module, "draftproof_site", None)
    if site is None or site.current is None:
        raise ModelError(
            "DP256", f"attention of {type(module).__name__} was called outside a pass of draftproof's target"
        )
    layer: Any = module.draftproof_layer
    own_window: Any = module.draftproof_window
    window = sliding_window if sliding_window is not None else own_window
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    rule = AttentionRule(scale, window, softcap, s_aux)
    return site.current.attend(layer, query[0], key[0], value[0], rule)[None], None


def _refuse_unknown(module: nn.Module, others: Mapping[str, Any]) -> None:
    unknown = sorted(
        name for name, value in others.items() if name not in _WITHOUT_EFFECT and value is not None
    )
    if unknown:
        raise ModelError(
            "DP253",
            f"attention of {type(module).__name__} asks for {', '.join(unknown)}, which draftproof does not support",
        )


def register() -> None:
    """Make the attention known to Transformers under `NAME`. Harmless when done twice."""
    from transformers import (
        AttentionInterface,
    )  # brings half of PyTorch with it, which the fused executor does without

    AttentionInterface.register(NAME, row_invariant_attention)
