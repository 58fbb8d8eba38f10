"""A model's weights packed for one precision, and the tables by which compiled code finds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from draftproof.models.fused.spec import FusedSpec, LayerSpec, Linear
from draftproof.models.kernels import forward as program
from draftproof.models.kernels.packing import PackedWeight, Precision, interleaved, pack, padded
from draftproof.models.kv import LANES


def head_precision(precision: Precision) -> Precision:
    """In which precision the LM head is packed: what 4 bits would lose there reaches the logits undamped, so it has 8."""
    return Precision.INT8 if precision is Precision.INT4 else precision


@dataclass(frozen=True)
class PackedLayer:
    """One layer's weights as compiled code reads them."""

    qkv: PackedWeight
    output: PackedWeight
    gate_up: PackedWeight
    down: PackedWeight
    norms: tuple[torch.Tensor | None, ...]
    """Attention, MLP, after attention, after MLP, query, key: float32, zeros up to a multiple of `LANES`; None for none."""


class PackedModel:
    """All weights of a model.

    Args:
        spec: the model; each weight is read once, packed, and let go.
        precision: of the products.

    Attributes:
        embedding: ``[vocab, hidden]`` in `dtype`.
        dtype: of the embedding, of keys and values, and of features.
        head: the LM head.
        numbers, measures, layers: what `kernels.forward.run` calls `model`, `reals` and `layers`.
    """

    def __init__(self, spec: FusedSpec, precision: Precision) -> None:
        self.dtype = torch.float32 if precision is Precision.FLOAT32 else torch.bfloat16
        self._packed = [_pack_layer(spec.read_layer(index), precision) for index in range(spec.num_layers)]
        self._final_norm = _norm(spec.final_norm())
        self.embedding = spec.embedding().to(self.dtype).contiguous()
        self.head = pack(spec.head(), head_precision(precision))
        self.numbers = _numbers(spec, self)
        scale = 1.0 if spec.embedding_scale is None else spec.embedding_scale
        # Transformers rounds the scale to the embedding's dtype.
        scale = float(torch.tensor(scale).to(self.dtype))
        self.measures = np.array([spec.epsilon, scale, spec.scaling, spec.final_softcap or 0.0])
        self.layers = np.array(
            [_line(layer, spec, index) for index, layer in enumerate(self._packed)], np.int64
        ).reshape(spec.num_layers, program.LAYER_FIELDS)

    @property
    def final_norm(self) -> torch.Tensor:
        """Float32, zeros up to a multiple of `LANES`."""
        return self._final_norm

    @property
    def widest_input(self) -> int:
        """The most prepared entries that a row has, of all products."""
        weights = [w for layer in self._packed for w in _weights(layer)] + [self.head]
        return max(weight.padded_in for weight in weights)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, the embedding included."""
        packed = [weight.nbytes for layer in self._packed for weight in _weights(layer)]
        return sum(packed) + self.head.nbytes + self.embedding.numel() * self.embedding.element_size()


def _weights(layer: PackedLayer) -> tuple[PackedWeight, ...]:
    return layer.qkv, layer.output, layer.gate_up, layer.down


def _pack_layer(layer: LayerSpec, precision: Precision) -> PackedLayer:
    queries_keys_values = (layer.query, layer.key, layer.value)
    norms = (
        layer.attention_norm,
        layer.mlp_norm,
        layer.after_attention_norm,
        layer.after_mlp_norm,
        layer.query_norm,
        layer.key_norm,
    )
    return PackedLayer(
        qkv=pack(
            torch.cat([part.weight for part in queries_keys_values]), precision, _joined(queries_keys_values)
        ),
        output=pack(layer.output.weight, precision, _bias(layer.output)),
        gate_up=pack(interleaved(layer.gate.weight, layer.up.weight), precision, _gate_up_bias(layer)),
        down=pack(layer.down.weight, precision, _bias(layer.down)),
        norms=tuple(None if norm is None else _norm(norm) for norm in norms),
    )


def _bias(linear: Linear) -> torch.Tensor | None:
    return None if linear.bias is None else linear.bias.float()


def _bias_or_zeros(linear: Linear) -> torch.Tensor:
    return (
        torch.zeros(linear.weight.shape[0], dtype=torch.float32)
        if linear.bias is None
        else linear.bias.float()
    )


def _joined(linears: tuple[Linear, ...]) -> torch.Tensor | None:
    if all(linear.bias is None for linear in linears):
        return None
    return torch.cat([_bias_or_zeros(linear) for linear in linears])


def _gate_up_bias(layer: LayerSpec) -> torch.Tensor | None:
    if layer.gate.bias is None and layer.up.bias is None:
        return None
    gate, up = (_bias_or_zeros(linear)[:, None] for linear in (layer.gate, layer.up))
    return interleaved(gate, up)[:, 0]


def _norm(weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(weight.float(), (0, -weight.shape[0] % LANES)).contiguous()


def _fields(weight: PackedWeight) -> list[int]:
    data, scales, bias = weight.address()
    return [data, scales, bias, weight.padded_in, weight.tiles]


def _line(layer: PackedLayer, spec: FusedSpec, index: int) -> list[int]:
    fields = [number for weight in _weights(layer) for number in _fields(weight)]
    norms = [0 if norm is None else norm.data_ptr() for norm in layer.norms]
    return [*fields, *norms, spec.windows[index] or 0, spec.rope_of_layer[index]]


def _numbers(spec: FusedSpec, model: PackedModel) -> np.ndarray:
    own = [
        spec.hidden_size,
        spec.intermediate_size,
        spec.heads,
        spec.kv_heads,
        spec.head_dim,
        padded(spec.head_dim, LANES),
        spec.vocab_size,
        spec.activation.value,
        model.embedding.data_ptr(),
        model.final_norm.data_ptr(),
    ]
    return np.array([*own, *_fields(model.head)], np.int64)
