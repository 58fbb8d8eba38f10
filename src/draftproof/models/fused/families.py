"""Which architectures the fused executor covers, read from a Transformers config and a checkpoint's tensors.

Whatever is not known to be covered makes `build_spec` answer None: another executor then runs the model as its own code
has it. A feature that is quietly left out would be far worse than a slower pass.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from draftproof.errors import ModelError
from draftproof.models.fused.rope import PlainAngles, RopeTable
from draftproof.models.fused.spec import Activation, FusedSpec, LayerSpec, Linear
from draftproof.models.rotary import STATIC_ROPE_TYPES

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
_KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention"})
_ALL_FULL = frozenset({"full_attention"})
_ROPE_TYPES = STATIC_ROPE_TYPES - {"proportional"}
_PREFIXES = ("model.", "model.language_model.", "language_model.model.")
_IGNORED = re.compile(r".*\.rotary_emb\.inv_freq")


@dataclass(frozen=True)
class _Family:
    """How an architecture differs from plain Llama.

    Attributes:
        rotary: its rotary module's class, in ``transformers.models.<module>``.
        module: of its code.
        window_everywhere: every layer uses the config's `sliding_window`.
        typed_layers: `layer_types` says which layers use it.
        head_norms: queries and keys are normed by head.
        sandwich: sublayers' outputs are normed too.
        norm_offset: norms multiply by ``1 + weight``.
        scales_embedding: looked-up rows are multiplied by the root of the hidden size.
    """

    module: str
    rotary: str
    window_everywhere: bool = False
    typed_layers: bool = False
    head_norms: bool = False
    sandwich: bool = False
    norm_offset: bool = False
    scales_embedding: bool = False


_GEMMA3 = _Family(
    "gemma3",
    "Gemma3RotaryEmbedding",
    typed_layers=True,
    head_norms=True,
    sandwich=True,
    norm_offset=True,
    scales_embedding=True,
)
_FAMILIES = {
    "llama": _Family("llama", "LlamaRotaryEmbedding"),
    "mistral": _Family("mistral", "MistralRotaryEmbedding", window_everywhere=True),
    "qwen2": _Family("qwen2", "Qwen2RotaryEmbedding", typed_layers=True),
    "qwen3": _Family("qwen3", "Qwen3RotaryEmbedding", typed_layers=True, head_norms=True),
    "gemma3_text": _GEMMA3,
}
MODEL_TYPES = frozenset(_FAMILIES)
"""Transformers model types that are covered (a `gemma3` checkpoint counts by its text model)."""


def build_spec(config: Any, tensors: Mapping[str, torch.Tensor]) -> FusedSpec | None:
    """What the fused executor needs of a model, or None where it does not cover all that the model asks for.

    Args:
        config: the checkpoint's Transformers config.
        tensors: its weights under their Hugging Face names, any float dtype, on the CPU; may read them when asked.

    Raises:
        ModelError: DP250, a weight is misshapen (when it is read).
    """
    text = config.get_text_config()
    family = _FAMILIES.get(text.model_type)
    if family is None or not _covers(family, config, text):
        return None
    names = _find_names(family, text, tensors)
    ropes = _ropes(family, text)
    if names is None or ropes is None:
        return None
    reader = _Reader(family, text, tensors, names)
    tables, rope_of_layer = ropes
    return FusedSpec(
        model_type=text.model_type,
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_layers=text.num_hidden_layers,
        vocab_size=int(text.vocab_size),
        max_position=int(getattr(text, "max_position_embeddings", None) or 2**31),
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=_head_dim(text),
        epsilon=float(text.rms_norm_eps),
        activation=_ACTIVATIONS[_activation(text)],
        scaling=float(getattr(text, "query_pre_attn_scalar", None) or _head_dim(text)) ** -0.5,
        windows=_windows(family, text),
        ropes=tables,
        rope_of_layer=rope_of_layer,
        embedding_scale=text.hidden_size**0.5 if family.scales_embedding else None,
        final_softcap=getattr(text, "final_logit_softcapping", None),
        end_token_ids=_ids(getattr(config, "eos_token_id", None) or getattr(text, "eos_token_id", None)),
        embedding=reader.embedding,
        head=reader.head,
        final_norm=reader.final_norm,
        read_layer=reader.layer,
    )


# --- what is covered ------------------------------------------------------------------------------------------------


def _covers(family: _Family, config: Any, text: Any) -> bool:
    types = set(getattr(text, "layer_types", None) or _ALL_FULL)
    lacking = (
        getattr(config, "quantization_config", None) is not None
        or getattr(config, "auto_map", None)  # code of its own
        or getattr(text, "is_encoder_decoder", False)
        or _activation(text) not in _ACTIVATIONS
        or getattr(text, "attn_logit_softcapping", None) is not None
        or getattr(text, "use_bidirectional_attention", False)
        or types - (_KNOWN_LAYERS if family.typed_layers else _ALL_FULL)
        or text.num_attention_heads % text.num_key_value_heads
        or _head_dim(text) % 2
    )
    return not lacking


def _activation(text: Any) -> str:
    return str(getattr(text, "hidden_activation", None) or getattr(text, "hidden_act", None))


def _head_dim(text: Any) -> int:
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def _windows(family: _Family, text: Any) -> tuple[int | None, ...]:
    window = getattr(text, "sliding_window", None)
    if family.window_everywhere:
        return (window,) * text.num_hidden_layers
    if not family.typed_layers:
        return (None,) * text.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in text.layer_types)


def _ropes(family: _Family, text: Any) -> tuple[tuple[RopeTable, ...], tuple[int, ...]] | None:
    """The model's rope tables and which of them each layer uses; None where angles depend on more than the position."""
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = any(isinstance(value, dict) for value in parameters.values())
    kinds = sorted(set(text.layer_types)) if nested else []
    asked: list[Any] = [parameters.get(kind) for kind in kinds] if nested else [parameters]
    if not all(entry is not None and _is_plain_rope(entry) for entry in asked):
        return None
    if all(_is_unscaled_rope(entry) for entry in asked):
        plain = tuple(RopeTable(PlainAngles(entry["rope_theta"], _head_dim(text))) for entry in asked)
        return plain, _rope_of_layer(text, kinds)
    code = importlib.import_module(f"transformers.models.{family.module}.modeling_{family.module}")
    module = getattr(code, family.rotary)(text)
    tables = tuple(RopeTable(module, kind) for kind in kinds) if nested else (RopeTable(module),)
    if any(table.half * 2 != _head_dim(text) for table in tables):
        return None
    return tables, _rope_of_layer(text, kinds)


def _rope_of_layer(text: Any, kinds: list[str]) -> tuple[int, ...]:
    if not kinds:
        return (0,) * text.num_hidden_layers
    return tuple(kinds.index(kind) for kind in text.layer_types)


def _is_unscaled_rope(parameters: Mapping[str, Any]) -> bool:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    return kind == "default" and parameters.get("rope_theta") is not None


def _is_plain_rope(parameters: Mapping[str, Any]) -> bool:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    return kind in _ROPE_TYPES and parameters.get("partial_rotary_factor") in (None, 1, 1.0)


def _ids(ids: int | list[int] | None) -> frozenset[int]:
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


# --- weights --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Names:
    """Under which prefix the decoder's weights lie, and the LM head's full name (the embedding's when tied)."""

    prefix: str
    head: str


def _norms(family: _Family) -> dict[str, str]:
    """A layer's norms: what they are here, and their names there."""
    names = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    if family.sandwich:
        names |= {
            "mlp_norm": "pre_feedforward_layernorm",
            "after_attention_norm": "post_attention_layernorm",
            "after_mlp_norm": "post_feedforward_layernorm",
        }
    if family.head_norms:
        names |= {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
    return names


_LINEARS = {
    **{part: f"self_attn.{part[0]}_proj" for part in ("query", "key", "value", "output")},
    **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}


def _find_names(family: _Family, text: Any, tensors: Mapping[str, torch.Tensor]) -> _Names | None:
    """Where everything lies; None where something is missing, or where there is something that we know nothing of."""
    prefix = next((p for p in _PREFIXES if f"{p}embed_tokens.weight" in tensors), None)
    if prefix is None:
        return None
    heads = ["lm_head.weight", prefix.replace("model.", "", 1) + "lm_head.weight"]
    if text.tie_word_embeddings:
        heads.append(f"{prefix}embed_tokens.weight")
    head = next((name for name in heads if name in tensors), None)
    present = {name for name in tensors if name.startswith(prefix) and not _IGNORED.fullmatch(name)}
    if head is None or present != _expected(family, text, prefix) or "lm_head.bias" in tensors:
        return None
    return _Names(prefix, head)


def _expected(family: _Family, text: Any, prefix: str) -> set[str]:
    """The names below the prefix."""
    names = {f"{prefix}embed_tokens.weight", f"{prefix}norm.weight"}
    for layer in range(text.num_hidden_layers):
        start = f"{prefix}layers.{layer}."
        names |= {f"{start}{name}.weight" for name in (*_LINEARS.values(), *_norms(family).values())}
        names |= {f"{start}{name}.bias" for name in _biased(family, text)}
    return names


def _biased(family: _Family, text: Any) -> list[str]:
    """The linears that have a bias."""
    if family.module == "qwen2":
        return ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    attention = [name for name in _LINEARS.values() if name.startswith("self_attn.")]
    mlp = [name for name in _LINEARS.values() if name.startswith("mlp.")]
    biased = attention if getattr(text, "attention_bias", False) else []
    return biased + (mlp if getattr(text, "mlp_bias", False) else [])


class _Reader:
    """Reads weights, checks their shapes, and brings norms into one form."""

    def __init__(
        self, family: _Family, text: Any, tensors: Mapping[str, torch.Tensor], names: _Names
    ) -> None:
        self._family, self._text, self._tensors, self._names = family, text, tensors, names
        self._biased = frozenset(_biased(family, text))

    def embedding(self) -> torch.Tensor:
        return self._read(f"{self._names.prefix}embed_tokens.weight", self._table())

    def head(self) -> torch.Tensor:
        return self._read(self._names.head, self._table())

    def final_norm(self) -> torch.Tensor:
        return self._norm(f"{self._names.prefix}norm", self._text.hidden_size)

    def layer(self, index: int) -> LayerSpec:
        start = f"{self._names.prefix}layers.{index}."
        linears = {part: self._linear(start, name, self._shape(part)) for part, name in _LINEARS.items()}
        norms: dict[str, torch.Tensor | None] = dict.fromkeys(
            ("after_attention_norm", "after_mlp_norm", "query_norm", "key_norm")
        )
        for part, name in _norms(self._family).items():
            of_head = part in ("query_norm", "key_norm")
            norms[part] = self._norm(
                start + name, _head_dim(self._text) if of_head else self._text.hidden_size
            )
        return LayerSpec(**linears, **norms)  # type: ignore[arg-type]

    def _table(self) -> tuple[int, int]:
        return self._text.vocab_size, self._text.hidden_size

    def _shape(self, part: str) -> tuple[int, int]:
        text = self._text
        hidden, inner = text.hidden_size, text.intermediate_size
        queries, keys = (
            heads * _head_dim(text) for heads in (text.num_attention_heads, text.num_key_value_heads)
        )
        shapes = {"query": (queries, hidden), "output": (hidden, queries), "down": (hidden, inner)}
        return shapes.get(part) or ((inner, hidden) if part in ("gate", "up") else (keys, hidden))

    def _linear(self, start: str, name: str, shape: tuple[int, int]) -> Linear:
        weight = self._read(f"{start}{name}.weight", shape)
        bias = self._read(f"{start}{name}.bias", shape[:1]) if name in self._biased else None
        return Linear(weight, bias)

    def _norm(self, name: str, width: int) -> torch.Tensor:
        weight = self._read(f"{name}.weight", (width,)).float()
        return weight + 1.0 if self._family.norm_offset else weight

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._tensors[name]
        if tuple(tensor.shape) != shape:
            raise ModelError(
                "DP250",
                f"{name} should be {list(shape)} by the model's configuration, but is {list(tensor.shape)}. "
                "Fetch the checkpoint again.",
            )
        return tensor
