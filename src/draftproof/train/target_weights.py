"""What a drafter takes from its target: the embedding and LM head it borrows, and the layers it starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftproof.errors import ModelError
from draftproof.models.executor import find_source
from draftproof.models.fused import FusedSpec
from draftproof.models.fused.spec import LayerSpec, Linear
from draftproof.models.loading import read_config
from draftproof.models.registry import resolve_model
from draftproof.models.target import TargetOptions

Tensors = dict[str, torch.Tensor]

_ROPE_KINDS = ("default", "linear", "llama3", "yarn")
"""What a drafter's config can carry; see `models.drafters.rope`."""
_DEFAULT_THETA = 10000.0
_LAYER_NAMES = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")),
)


@dataclass(frozen=True)
class TargetWeights:
    """A target's weights and numbers, on the CPU.

    Attributes:
        name: how the user named it.
        model_type: its Transformers ``model_type``.
        hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size, max_position: its sizes.
        rms_norm_eps, hidden_act: of its norms and of its MLPs' gates.
        rope: ``rope_type``, ``rope_theta`` and the scaling's own parameters, as a drafter's config has them.
        score_scale: factor on its attention scores.
        embedding: ``[vocab, hidden]``, raw, in the checkpoint's dtype.
        embedding_scale: what it multiplies looked-up rows with.
        lm_head: ``[vocab, hidden]``, without bias; the embedding where tied.
        softcap: of its final logits, or None.
        final_norm: float32 ``[hidden]``, or None where it has no such norm.
        layers: the last layers, in order, under the names of the published drafter layout without ``layers.{i}.``
            (``self_attn.q_proj.weight`` ...); what an architecture does not have in that form is left out. Norms are
            float32 factors.
    """

    name: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    hidden_act: str
    rope: dict[str, Any]
    score_scale: float
    embedding: torch.Tensor
    embedding_scale: float
    lm_head: torch.Tensor
    softcap: float | None
    final_norm: torch.Tensor | None
    layers: tuple[Tensors, ...]


def read_target_weights(model: str | Path, num_layers: int) -> TargetWeights:
    """Read a target's embedding, LM head and last layers from its checkpoint.

    Args:
        model: a name, hub id or folder, as `LLM` takes it.
        num_layers: how many of the last layers are wanted; fewer come where it has fewer.

    Raises:
        ModelError: the model cannot be found or read (DP2xx); DP510, a drafter cannot borrow from it.
    """
    resolved = resolve_model(str(model))
    config = read_config(resolved.path, str(model), trust_remote_code=False)
    source = find_source(resolved.path, str(model), TargetOptions(dtype="float32", device="cpu"))
    if isinstance(source, str):
        return _from_transformers(resolved.path, str(model), config, num_layers)
    return _from_spec(source.spec, str(model), config, num_layers)


def _from_spec(spec: FusedSpec, name: str, config: Any, count: int) -> TargetWeights:
    first = max(spec.num_layers - count, 0)
    return TargetWeights(
        name=name,
        model_type=spec.model_type,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_layers=spec.num_layers,
        num_heads=spec.heads,
        num_kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        max_position=spec.max_position,
        rms_norm_eps=spec.epsilon,
        hidden_act=_activation(config.get_text_config()),
        rope=_rope(config.get_text_config()),
        score_scale=spec.scaling,
        embedding=spec.embedding(),
        embedding_scale=spec.embedding_scale or 1.0,
        lm_head=spec.head(),
        softcap=spec.final_softcap,
        final_norm=spec.final_norm(),
        layers=tuple(_layer_of_spec(spec.read_layer(index)) for index in range(first, spec.num_layers)),
    )


def _layer_of_spec(layer: LayerSpec) -> Tensors:
    """The published names of a layer. Norms on sublayers' outputs have no place in a drafter's layer and are left out."""
    linears: dict[str, Linear] = {
        "self_attn.q_proj": layer.query,
        "self_attn.k_proj": layer.key,
        "self_attn.v_proj": layer.value,
        "self_attn.o_proj": layer.output,
        "mlp.gate_proj": layer.gate,
        "mlp.up_proj": layer.up,
        "mlp.down_proj": layer.down,
    }
    norms = {
        "input_layernorm": layer.attention_norm,
        "post_attention_layernorm": layer.mlp_norm,
        "self_attn.q_norm": layer.query_norm,
        "self_attn.k_norm": layer.key_norm,
    }
    named = {f"{name}.weight": linear.weight for name, linear in linears.items()}
    named |= {f"{name}.bias": linear.bias for name, linear in linears.items() if linear.bias is not None}
    named |= {f"{name}.weight": norm for name, norm in norms.items() if norm is not None}
    return named


def _from_transformers(path: Path, name: str, config: Any, count: int) -> TargetWeights:
    """Through the model's own code, for architectures that the compiled executor does not cover."""
    from transformers import AutoModelForCausalLM  # slow to import

    try:
        model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype="auto")
    except Exception as error:  # whatever the model's code raises means that it cannot be read
        raise ModelError("DP250", f"cannot load {name}: {type(error).__name__}: {error}") from error
    text = config.get_text_config()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    table, out = getattr(embedding, "weight", None), getattr(head, "weight", None)
    if not (
        isinstance(table, torch.Tensor) and isinstance(out, torch.Tensor) and table.ndim == out.ndim == 2
    ):
        raise ModelError("DP510", f"{name}: a drafter borrows a plain embedding and LM head; there is none")
    if getattr(head, "bias", None) is not None:
        raise ModelError(
            "DP510", f"{name}: its LM head has a bias, which training a borrowed head does not cover"
        )
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    head_dim = int(getattr(text, "head_dim", None) or hidden // heads)
    stack = _layer_stack(model, int(text.num_hidden_layers))
    final = getattr(model.get_decoder(), "norm", None)
    return TargetWeights(
        name=name,
        model_type=str(text.model_type),
        hidden_size=hidden,
        intermediate_size=int(getattr(text, "intermediate_size", None) or 4 * hidden),
        num_layers=int(text.num_hidden_layers),
        num_heads=heads,
        num_kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=head_dim,
        vocab_size=int(table.shape[0]),
        max_position=int(getattr(text, "max_position_embeddings", None) or 32768),
        rms_norm_eps=float(getattr(text, "rms_norm_eps", None) or 1e-6),
        hidden_act=_activation(text),
        rope=_rope(text),
        score_scale=float(getattr(text, "query_pre_attn_scalar", None) or head_dim) ** -0.5,
        embedding=table.detach(),
        embedding_scale=float(getattr(embedding, "scalar_embed_scale", None) or 1.0),
        lm_head=out.detach(),
        softcap=getattr(text, "final_logit_softcapping", None),
        final_norm=_norm_factor(final, str(text.model_type)),
        layers=tuple(_layer_of_module(layer, str(text.model_type)) for layer in stack[-count:])
        if count
        else (),
    )


def _layer_stack(model: Any, count: int) -> list[Any]:
    for module in model.get_decoder().modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    return []


def _layer_of_module(layer: Any, model_type: str) -> Tensors:
    """What a layer has under the published names, and nothing else: fused or mixture parts are left out."""
    modules = dict(layer.named_modules())
    named: Tensors = {}
    for name in _LAYER_NAMES:
        module = modules.get(name)
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor):
            continue
        if name.endswith("norm"):
            factor = _norm_factor(module, model_type)
            if factor is not None:
                named[f"{name}.weight"] = factor
            continue
        named[f"{name}.weight"] = weight.detach()
        bias = getattr(module, "bias", None)
        if isinstance(bias, torch.Tensor):
            named[f"{name}.bias"] = bias.detach()
    return named


def _norm_factor(norm: Any, model_type: str) -> torch.Tensor | None:
    """A norm's float32 factor; Gemma stores it less 1."""
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, torch.Tensor):
        return None
    return weight.detach().float() + (1.0 if model_type.startswith("gemma") else 0.0)


def _activation(text: Any) -> str:
    name = str(getattr(text, "hidden_activation", None) or getattr(text, "hidden_act", None) or "silu")
    return {"gelu_new": "gelu_pytorch_tanh"}.get(name, name)


def _rope(text: Any) -> dict[str, Any]:
    """The target's rotary settings where a drafter's config can carry them, else plain ones with its base.

    Of settings that differ by layer type, those of full attention: a drafter's layers see the whole context.
    """
    given = getattr(text, "rope_parameters", None) or {}
    if any(isinstance(value, dict) for value in given.values()):
        given = given.get("full_attention") or next(iter(given.values()))
    theta = float(given.get("rope_theta") or getattr(text, "rope_theta", None) or _DEFAULT_THETA)
    kind = given.get("rope_type") or given.get("type") or "default"
    partial = given.get("partial_rotary_factor") not in (None, 1, 1.0)
    if kind not in _ROPE_KINDS or kind == "default" or partial:
        return {"rope_type": "default", "rope_theta": theta}
    scaling = {key: value for key, value in given.items() if value is not None and key not in ("type",)}
    scaling.pop("partial_rotary_factor", None)
    return {**scaling, "rope_type": kind, "rope_theta": theta}
