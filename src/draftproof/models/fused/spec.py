"""What the fused executor needs to know of a model: its numbers, and where its weights come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

from draftproof.models.fused.rope import RopeTable


class Activation(Enum):
    """What the gate of an MLP goes through. The value is its number in compiled code."""

    SILU = 0
    GELU_TANH = 1


@dataclass(frozen=True)
class Linear:
    """A linear's weight ``[out, in]`` and bias ``[out]`` or None, any float dtype, on the CPU."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True)
class LayerSpec:
    """Weights and numbers of one decoder layer.

    Norm weights are float32 factors: where an architecture stores them less 1, 1 has been added.

    Attributes:
        query, key, value, output, gate, up, down: the layer's products.
        attention_norm, mlp_norm: ``[hidden]``, before attention and before the MLP.
        after_attention_norm, after_mlp_norm: ``[hidden]``, on a sublayer's output before it is added; None for none.
        query_norm, key_norm: ``[head_dim]``, on every head; None for none.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    gate: Linear
    up: Linear
    down: Linear
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    after_attention_norm: torch.Tensor | None
    after_mlp_norm: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None


@dataclass(frozen=True)
class FusedSpec:
    """A decoder of the Llama family.

    Weights are read when they are asked for, so that a whole model never lies in memory twice.

    Attributes:
        model_type: the Transformers ``model_type``.
        hidden_size, intermediate_size, num_layers, vocab_size, max_position: sizes, in entries, layers and tokens.
        heads, kv_heads, head_dim: query heads, key/value heads, and their width.
        epsilon: of every norm.
        activation: of the MLP's gate.
        scaling: factor on attention scores.
        windows: sliding window of each layer, None for full attention.
        ropes: tables of cos and sin.
        rope_of_layer: which of `ropes` each layer uses.
        embedding_scale: factor on looked-up embedding rows, to be rounded to the embedding's dtype; None for none.
        final_softcap: logits become ``softcap * tanh(logits / softcap)``; None for none.
        end_token_ids: the config's end tokens.
        embedding, head: the token embedding and the LM head, each ``[vocab, hidden]``; the same when tied.
        final_norm: float32 ``[hidden]``.
        read_layer: the weights of a layer.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    vocab_size: int
    max_position: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    activation: Activation
    scaling: float
    windows: tuple[int | None, ...]
    ropes: tuple[RopeTable, ...]
    rope_of_layer: tuple[int, ...]
    embedding_scale: float | None
    final_softcap: float | None
    end_token_ids: frozenset[int]
    embedding: Callable[[], torch.Tensor]
    head: Callable[[], torch.Tensor]
    final_norm: Callable[[], torch.Tensor]
    read_layer: Callable[[int], LayerSpec]
