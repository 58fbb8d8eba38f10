"""A drafter's weights as its compiled passes find them: packed, and listed by address."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from draftproof.models.drafters.base import TargetInfo
from draftproof.models.drafters.config import DrafterConfig, LayerAttention
from draftproof.models.drafters.rope import RopeSettings, inverse_frequencies
from draftproof.models.kernels import drafter as program
from draftproof.models.kernels import weight_fields
from draftproof.models.kernels.packing import (
    TILE,
    PackedWeight,
    Precision,
    fast,
    group_bytes,
    interleaved,
    pack,
    padded,
)

ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_pytorch_tanh": 1}
"""Those that compiled code knows, by its numbers."""
_CHANNELS_AT_ONCE = 2048


@dataclass(frozen=True)
class Precisions:
    """Of the layers' products and of the LM head's."""

    layers: Precision
    head: Precision

    @staticmethod
    def default(dtype: torch.dtype) -> Precisions:
        """For a drafter of this dtype: its own numbers in float32, else what is fastest here.

        A draft is checked before it is used, so a coarser drafter can cost acceptance, never correctness. Measured with
        SmolLM2-135M (math and code, three drafts, alone): with an int8 head 1.11 times as fast as no drafting at an acceptance
        length of 1.708, with an int4 head 1.20 times at 1.696; int4 layers as well gain nothing more.
        """
        if dtype == torch.float32:
            return Precisions(Precision.FLOAT32, Precision.FLOAT32)
        if fast(Precision.INT8):
            return Precisions(Precision.INT8, Precision.INT4)
        return Precisions(Precision.BFLOAT16, Precision.BFLOAT16)


class AngleTable:
    """Cosines and sines by position, float32 ``[positions, head_dim]``, cosines first; doubled as texts grow longer."""

    def __init__(self, settings: RopeSettings) -> None:
        self._frequencies, self._factor = inverse_frequencies(settings)
        self._table = self._build(1024)

    def _build(self, positions: int) -> torch.Tensor:
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self._frequencies[None, :]
        return torch.cat((angles.cos() * self._factor, angles.sin() * self._factor), -1).contiguous()

    def up_to(self, end: int) -> int:
        """Address of the table, which holds all positions below `end`. Valid until the next call."""
        have = self._table.shape[0]
        if end > have:
            while have < end:
                have *= 2
            self._table = self._build(have)
        return self._table.data_ptr()


class FusedWeights:
    """Weights, packed.

    Attributes:
        numbers: int64 ``[MODEL_FIELDS]``, what `kernels.drafter` calls `model`.
        layers: int64 ``[layers, LAYER_FIELDS]``.
        head: None where the LM head is a function of the target's that cannot be looked into.
        vocabulary: the tokens of its rows, int64; None: all.
        widest: most entries of a prepared row.
    """

    def __init__(
        self,
        config: DrafterConfig,
        tensors: dict[str, torch.Tensor],
        target: TargetInfo,
        precisions: Precisions,
        dtype: torch.dtype,
        vocabulary: torch.Tensor | None = None,
    ) -> None:
        self.precisions = precisions
        self._kept: list[torch.Tensor | np.ndarray | PackedWeight] = []
        self._config, self._tensors = config, tensors
        own = tensors.get("embed_tokens.weight")
        self.embedding = target.embedding if own is None else own.to(dtype)
        self.embedding = self.embedding.contiguous()
        self.head = _head(config, tensors, target, precisions.head)
        self.vocabulary = None if self.head is None else vocabulary
        if self.head is not None and vocabulary is not None:
            self.head = narrowed(self.head, vocabulary)
        self.norm = self._vector("norm.weight")
        self.widest = 0
        self.numbers = self._numbers(len(config.target_layer_ids) * target.hidden_size, dtype)
        del self._tensors

    def _numbers(self, feature_width: int, dtype: torch.dtype) -> np.ndarray:
        config = self._config
        numbers = np.zeros(program.MODEL_FIELDS, np.int64)
        numbers[program.LAYERS] = config.num_layers
        numbers[program.HIDDEN] = config.hidden_size
        numbers[program.STRIDE] = padded(config.hidden_size, TILE)
        numbers[program.INNER] = config.intermediate_size
        numbers[program.HEADS] = config.num_heads
        numbers[program.KV_HEADS] = config.num_kv_heads
        numbers[program.HEAD_DIM] = config.head_dim
        numbers[program.VOCAB] = config.vocab_size if self.vocabulary is None else len(self.vocabulary)
        numbers[program.ACTIVATION] = ACTIVATIONS[config.hidden_act]
        numbers[program.EMBEDDING] = self.embedding.data_ptr()
        numbers[program.EMBEDDING_IS_HALF] = self.embedding.dtype == torch.bfloat16
        numbers[program.PAGES_ARE_HALF] = dtype == torch.bfloat16
        numbers[program.FINAL_NORM] = self.norm.data_ptr()
        numbers[program.FEATURE_WIDTH] = feature_width
        numbers[program.HIDDEN_NORM] = self._vector("hidden_norm.weight").data_ptr()
        numbers[program.MEASURES] = self._keep(self._measures()).ctypes.data
        self.layers = np.stack([self._layer(index) for index in range(config.num_layers)])
        numbers[program.LAYER_TABLE] = self.layers.ctypes.data
        names = [f"layers.{i}.self_attn" for i in range(config.num_layers)]
        norms = torch.stack([self._tensors[f"{name}.k_norm.weight"].float() for name in names])
        numbers[program.CONTEXT_KEY_NORMS] = self._keep_tensor(norms).data_ptr()
        self._place(numbers, program.FC, self._packed("fc"))
        both = [f"{name}.{part}_proj" for name in names for part in ("k", "v")]
        self._place(numbers, program.CONTEXT, self._packed(*both))
        if self.head is not None:
            self._place(numbers, program.HEAD, self.head)
        return numbers

    def _measures(self) -> np.ndarray:
        config = self._config
        measures = np.zeros(program.MEASURE_FIELDS, np.float64)
        measures[program.EPSILON] = config.rms_norm_eps
        measures[program.SCALING] = config.head_dim**-0.5
        measures[program.EMBEDDING_SCALE] = config.embedding_scale
        measures[program.VALUE_SCALE] = config.value_scale
        measures[program.MULTIPLIER] = config.output_multiplier
        measures[program.SOFTCAP] = config.softcap or 0.0
        return measures

    def _layer(self, index: int) -> np.ndarray:
        name, line = f"layers.{index}", np.zeros(program.LAYER_FIELDS, np.int64)
        attention: LayerAttention = self._config.layers[index]
        gates = [self._tensors[f"{name}.mlp.{part}_proj.weight"].float() for part in ("gate", "up")]
        parts = [f"{name}.self_attn.{part}_proj" for part in ("q", "k", "v")]
        self._place(line, weight_fields.QKV, self._packed(*parts))
        self._place(line, weight_fields.OUTPUT, self._packed(f"{name}.self_attn.o_proj"))
        self._place(line, weight_fields.GATE_UP, pack(interleaved(*gates), self.precisions.layers))
        self._place(line, weight_fields.DOWN, self._packed(f"{name}.mlp.down_proj"))
        for field, norm in (
            (program.INPUT_NORM, "input_layernorm"),
            (program.POST_NORM, "post_attention_layernorm"),
            (program.QUERY_NORM, "self_attn.q_norm"),
            (program.KEY_NORM, "self_attn.k_norm"),
        ):
            line[field] = self._vector(f"{name}.{norm}.weight").data_ptr()
        sinks = f"{name}.self_attn.attention_sink_bias"
        line[program.SINKS] = self._vector(sinks).data_ptr() if sinks in self._tensors else 0
        line[program.WINDOW] = attention.window or 0
        line[program.CAUSAL] = attention.causal
        return line

    def _packed(self, *names: str) -> PackedWeight:
        """Linears over the same input as one, outputs side by side; biases where the checkpoint has them."""
        biases = [self._tensors[f"{name}.bias"] for name in names if f"{name}.bias" in self._tensors]
        weight = torch.cat([self._tensors[f"{name}.weight"].float() for name in names])
        return pack(weight, self.precisions.layers, torch.cat(biases) if biases else None)

    def _place(self, numbers: np.ndarray, at: int, weight: PackedWeight) -> None:
        self._kept.append(weight)
        data, scales, bias = weight.address()
        numbers[at : at + weight_fields.WEIGHT_FIELDS] = data, scales, bias, weight.padded_in, weight.tiles
        self.widest = max(self.widest, weight.padded_in)

    def _vector(self, name: str) -> torch.Tensor:
        return self._keep_tensor(self._tensors[name])

    def _keep_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        kept = tensor.float().contiguous()
        self._kept.append(kept)
        return kept

    def _keep(self, array: np.ndarray) -> np.ndarray:
        self._kept.append(array)
        return array


def _head(
    config: DrafterConfig, tensors: dict[str, torch.Tensor], target: TargetInfo, precision: Precision
) -> PackedWeight | None:
    own = tensors.get("lm_head.weight")
    if own is None and config.tie_word_embeddings:
        own = tensors.get("embed_tokens.weight")
    if own is not None:
        return pack(own, precision)
    borrowed = target.packed_head
    if borrowed is None or group_bytes(borrowed.precision) <= group_bytes(precision):
        return borrowed
    return repacked(borrowed, precision)


def narrowed(weight: PackedWeight, channels: torch.Tensor) -> PackedWeight:
    """Some output channels of a weight, int64 ``[n]`` ascending, in its precision."""
    size, rows = weight.tiles * TILE, []
    for first in range(0, size, _CHANNELS_AT_ONCE):
        mine = channels[(channels >= first) & (channels < first + _CHANNELS_AT_ONCE)] - first
        data = weight.data[first // TILE : (first + _CHANNELS_AT_ONCE) // TILE]
        part = replace(weight, data=data, out_features=data.shape[0] * TILE, bias=None)
        rows.append(part.unpack()[mine])
    bias = None if weight.bias is None else weight.bias[channels]
    return pack(torch.cat(rows), weight.precision, bias)


def repacked(weight: PackedWeight, precision: Precision) -> PackedWeight:
    """The same weight in another precision, a part at a time, so that it never lies unpacked as a whole."""
    tiles = _CHANNELS_AT_ONCE // TILE
    parts = [
        pack(
            replace(weight, data=data, out_features=data.shape[0] * TILE, bias=None).unpack(), precision
        ).data
        for data in weight.data.split(tiles)
    ]
    return replace(weight, precision=precision, data=torch.cat(parts))
