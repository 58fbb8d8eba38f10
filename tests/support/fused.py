"""Small random models of every covered architecture, as spec and as Transformers model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftproof.models import loading
from draftproof.models.fused import FusedTarget, Precision, build_spec
from support.tiny import CONFIGS

KINDS = ["llama", "llama-odd", "llama-yarn", "mistral", "qwen2", "qwen3", "gemma3"]
ODD_VOCAB = 301


def products_of_bfloat16(monkeypatch: pytest.MonkeyPatch, good: bool) -> None:
    """Whether the machine counts as one that computes bfloat16 well, whatever it is."""
    monkeypatch.setattr(loading, "packing_available", lambda dtype, device: good)


def make_fused(
    kind: str, precision: Precision = Precision.FLOAT32, **changes: Any
) -> tuple[FusedTarget, Any]:
    """A random model in a precision, and the same as Transformers has it in float32.

    Sizes are odd (hidden 72, inner 100, heads of 24), the vocabulary no multiple of a tile.
    """
    model = make_model_of(kind, **changes)
    spec = build_spec(model.config, model.state_dict())
    assert spec is not None
    return FusedTarget(spec, precision, kind), model


def make_model_of(kind: str, **changes: Any) -> Any:
    """A random model of odd sizes; `changes` go into its config."""
    torch.manual_seed(0)
    config = CONFIGS[kind]()
    odd = {"vocab_size": ODD_VOCAB, "hidden_size": 72, "intermediate_size": 100, "head_dim": 24}
    for name, value in {**odd, **changes}.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.12)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)  # norms that are not all alike
    model.set_attn_implementation("eager")
    return model.eval()
