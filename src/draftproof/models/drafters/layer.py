"""One decoder layer of the drafter: a Qwen3-style layer whose queries are the block's slots only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from draftproof.models.drafters.attention import Block, Bucket, attend, make_buckets
from draftproof.models.drafters.config import DrafterConfig, LayerAttention
from draftproof.models.drafters.convolution import DynamicConv, predecessors
from draftproof.models.drafters.dense import Linear, linear
from draftproof.models.drafters.rope import rotate

Tensors = dict[str, torch.Tensor]

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True)
class PassLayout:
    """Which row of a pass is what.

    Attributes:
        positions: ``[rows]``, each row's position in its sequence.
        slots: ``[rows]``, each row's slot in its block; 0 the anchor.
        end: beyond every position.
        buckets: how the layers attend, by their kind of attention.
        shifts: ``[rows, K]``, where DFlash 2's convolution finds row t's o-th predecessor among the rows with a row of zeros
            before them; None without a convolution.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    end: int
    buckets: dict[LayerAttention, list[Bucket]]
    shifts: torch.Tensor | None


def lay_out(
    blocks: Sequence[Block], config: DrafterConfig, dtype: torch.dtype, device: torch.device
) -> PassLayout:
    """The layout of a pass over `blocks`, whose rows follow each other."""
    slots = torch.tensor([slot for block in blocks for slot in range(len(block.rows))], device=device)
    positions = [p for block in blocks for p in range(block.length, block.length + len(block.rows))]
    return PassLayout(
        positions=torch.tensor(positions, device=device),
        slots=slots,
        end=max(positions) + 1,
        buckets={kind: make_buckets(blocks, kind, dtype) for kind in set(config.layers)},
        shifts=None if config.conv is None else predecessors(slots, config.conv.kernel_size),
    )


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, merged where they share an input, and how to apply them."""

    index: int
    attention: LayerAttention
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    value_scale: float
    input_norm: torch.Tensor
    post_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor
    output: Linear
    sinks: torch.Tensor | None
    gate_up: Linear
    down: Linear
    activation: Callable[[torch.Tensor], torch.Tensor]
    attention_conv: DynamicConv | None
    mlp_conv: DynamicConv | None

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: PassLayout
    ) -> torch.Tensor:
        """``[rows, hidden] -> [rows, hidden]``; `cos` and `sin` are ``[rows, 1, head_dim]``."""
        buckets = layout.buckets[self.attention]

        def attention(h: torch.Tensor) -> torch.Tensor:
            return self._attention(h, cos, sin, buckets)

        x = x + _convolved(attention, self._normed(x, self.input_norm), self.attention_conv, layout.shifts)
        return x + _convolved(self._mlp, self._normed(x, self.post_norm), self.mlp_conv, layout.shifts)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.eps)

    def _attention(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, buckets: Sequence[Bucket]
    ) -> torch.Tensor:
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        split = self.num_heads + self.num_kv_heads
        normed = functional.rms_norm(heads[:, :split], (self.head_dim,), None, self.eps) * self.qk_norm
        rotated = rotate(normed, cos, sin)
        queries, keys = rotated[:, : self.num_heads], rotated[:, self.num_heads :]
        values = heads[:, split:] if self.value_scale == 1.0 else heads[:, split:] * self.value_scale
        own = torch.cat((keys, values), 1).view(x.shape[0], -1)
        out = x.new_empty(x.shape[0], self.num_heads * self.head_dim)
        for bucket in buckets:
            out.index_copy_(0, bucket.own_rows, self._attend(bucket, queries, own))
        return self.output(out)

    def _attend(self, bucket: Bucket, queries: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """The answers for the bucket's own rows, ``[n, heads * head_dim]``."""
        keys, values = bucket.gather(self.index, own, self.num_kv_heads)
        asked = queries.index_select(0, bucket.queries).view(bucket.batch, -1, self.num_heads, self.head_dim)
        answers = attend(asked, keys, values, bucket.bias, self.sinks)
        return answers.view(-1, answers.shape[-1]).index_select(0, bucket.answers)

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.activation(gate) * up)


def _convolved(
    sublayer: Callable[[torch.Tensor], torch.Tensor],
    normed: torch.Tensor,
    conv: DynamicConv | None,
    shifts: torch.Tensor | None,
) -> torch.Tensor:
    """The sublayer, with DFlash 2's convolution on its input and its output where there is one."""
    if conv is None or shifts is None:
        return sublayer(normed)
    dynamic = conv.dynamic(normed)
    return conv.apply(sublayer(conv.apply(normed, dynamic, 0, shifts)), dynamic, 1, shifts)


def build_layer(config: DrafterConfig, weights: Tensors, index: int) -> Layer:
    """Layer `index` from the checkpoint's tensors, already in the drafter's dtype."""
    own = {
        name.removeprefix(f"layers.{index}."): t
        for name, t in weights.items()
        if name.startswith(f"layers.{index}.")
    }
    return Layer(
        index=index,
        attention=config.layers[index],
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        value_scale=config.value_scale,
        input_norm=own["input_layernorm.weight"],
        post_norm=own["post_attention_layernorm.weight"],
        qkv=merged(own, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        qk_norm=torch.cat(
            (
                own["self_attn.q_norm.weight"].expand(config.num_heads, -1),
                own["self_attn.k_norm.weight"].expand(config.num_kv_heads, -1),
            )
        ),
        output=merged(own, "self_attn.o_proj"),
        sinks=own.get("self_attn.attention_sink_bias"),
        gate_up=merged(own, "mlp.gate_proj", "mlp.up_proj"),
        down=merged(own, "mlp.down_proj"),
        activation=_ACTIVATIONS[config.hidden_act],
        attention_conv=_conv(own, "attention_conv"),
        mlp_conv=_conv(own, "mlp_conv"),
    )


def merged(weights: Tensors, *names: str) -> Linear:
    """Linears over the same input as one, outputs side by side; biases where the checkpoint has them."""
    biases = [weights[f"{name}.bias"] for name in names if f"{name}.bias" in weights]
    return linear(
        torch.cat([weights[f"{name}.weight"] for name in names]), torch.cat(biases) if biases else None
    )


def _conv(own: Tensors, name: str) -> DynamicConv | None:
    if f"{name}.base_kernel" not in own:
        return None
    return DynamicConv(own[f"{name}.base_kernel"], linear(own[f"{name}.kernel_projection.weight"]))
