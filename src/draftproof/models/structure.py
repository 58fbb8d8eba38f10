"""Finds the parts of a Hugging Face causal LM that the target needs, and refuses what cannot be served losslessly."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from draftproof.errors import ModelError
from draftproof.models.attention import NAME, AttentionSite
from draftproof.models.loading import no_attention_interface
from draftproof.models.rotary import STATIC_ROPE_TYPES

_POSITIONAL_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})
_SLIDING = "sliding_attention"


@dataclass(frozen=True)
class Structure:
    """The parts of a model.

    Attributes:
        model: the whole causal LM.
        decoder: the part below the LM head; its output's ``last_hidden_state`` is after the final norm.
        layers: the decoder layers, in order.
        embedding: the token embedding.
        hidden_size, num_layers, vocab_size, max_position, model_type: of the text model.
        takes_logits_to_keep: whether `forward` can be told which logit rows to compute.
        windows: sliding window of each layer by the config's `layer_types`, None for full attention.
        names_layer_types: whether the config has `layer_types`.
    """

    model: nn.Module
    decoder: nn.Module
    layers: nn.ModuleList
    embedding: nn.Embedding
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position: int
    model_type: str
    takes_logits_to_keep: bool
    windows: tuple[int | None, ...]
    names_layer_types: bool

    def attach(self, site: AttentionSite) -> None:
        """Tell every attention module where it finds the pass it works for, its layer and its window."""
        modules = self._attention_modules()
        if not modules:
            raise ModelError(
                "DP253", f"the layers of {self.model_type} carry no layer_idx: its attention cannot be found"
            )
        for layer, module in modules:
            module.draftproof_site = site  # type: ignore[assignment]
            module.draftproof_layer = layer  # type: ignore[assignment]
            module.draftproof_window = self.windows[layer]  # type: ignore[assignment]

    def set_window(self, window: int) -> None:
        """Give every attention layer this sliding window."""
        for _, module in self._attention_modules():
            module.draftproof_window = window  # type: ignore[assignment]

    def _attention_modules(self) -> list[tuple[int, nn.Module]]:
        """Every module that knows its layer's index, with that index."""
        indexed = ((getattr(module, "layer_idx", None), module) for module in self.layers.modules())
        return [(layer, module) for layer, module in indexed if isinstance(layer, int)]

    def lm_head(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The bare LM head as it now stands (after operators were swapped)."""
        head: Callable[[torch.Tensor], torch.Tensor] = self.model.get_output_embeddings()  # type: ignore[operator]
        return head

    def tap_module(self, layer: int) -> nn.Module:
        """Whose output is the hidden state after `layer`; for the last layer that is after the final norm."""
        return self.decoder if layer == self.num_layers - 1 else self.layers[layer]


def find_structure(model: nn.Module, name: str) -> Structure:
    """Look a loaded model over.

    Raises:
        ModelError: DP253 (an architecture without the attention interface or with unknown parts), DP254 (state that cannot
            be rolled back by position), DP255 (rope that depends on the longest row of a pass).
    """
    config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
    _refuse_unsupported(model, config, name)
    decoder = model.get_decoder()  # type: ignore[operator]
    layers = _find_layers(decoder, config.num_hidden_layers, name)
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    if not isinstance(embedding, nn.Embedding) or model.get_output_embeddings() is None:  # type: ignore[operator]
        raise ModelError(
            "DP253",
            f"{name}: a plain token embedding and an LM head are needed, {config.model_type} has none",
        )
    return Structure(
        model=model,
        decoder=decoder,
        layers=layers,
        embedding=embedding,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        vocab_size=embedding.weight.shape[0],
        max_position=int(getattr(config, "max_position_embeddings", None) or 2**31),
        model_type=config.model_type,
        takes_logits_to_keep="logits_to_keep" in inspect.signature(model.forward).parameters,
        windows=_windows(config),
        names_layer_types=bool(getattr(config, "layer_types", None)),
    )


def _find_layers(decoder: nn.Module, count: int, name: str) -> nn.ModuleList:
    for child in decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return child
    raise ModelError(
        "DP253", f"{name}: expected a list of {count} decoder layers in {type(decoder).__name__}, found none"
    )


def _windows(config: Any) -> tuple[int | None, ...]:
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return tuple(getattr(config, "sliding_window", None) if kind == _SLIDING else None for kind in types)


def _refuse_unsupported(model: nn.Module, config: Any, name: str) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            "DP253", f"{name} is an encoder-decoder model; draftproof decodes causal language models"
        )
    strange = sorted(set(getattr(config, "layer_types", None) or ()) - _POSITIONAL_LAYERS)
    if strange or getattr(model, "_is_stateful", False):
        raise ModelError(
            "DP254",
            f"{name} ({config.model_type}) has layers whose state cannot be rolled back by position: "
            f"{', '.join(strange) or 'recurrent state'}. Use a target with attention layers only.",
        )
    if config._attn_implementation != NAME or not getattr(model, "_supports_attention_backend", False):
        raise no_attention_interface(name, config.model_type)
    for kind in _rope_types(config):
        if kind not in STATIC_ROPE_TYPES:
            raise ModelError(
                "DP255",
                f"{name} uses rope type '{kind}', whose angles depend on the longest row of a pass, so a token would depend "
                f"on its neighbours. Supported: {', '.join(sorted(STATIC_ROPE_TYPES))}.",
            )


def _rope_types(config: Any) -> set[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {entry.get("rope_type") or "default" for entry in (nested or [parameters])}
