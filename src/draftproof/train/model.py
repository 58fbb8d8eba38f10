"""The DFlash drafter as it is trained: the published layout's mathematics (design section 4) under autograd.

Only block slots are queries. A sequence's context keys and values are computed once for all its blocks. The target's
embedding and LM head are borrowed: they take part frozen, and belong to no state dict, no optimiser and no broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from draftproof.errors import DrafterError
from draftproof.models.drafters.config import DrafterConfig, LayerAttention
from draftproof.models.drafters.rope import RotaryTable
from draftproof.models.drafters.weights import check_tensors
from draftproof.train.block_attention import BlockRows, block_attention
from draftproof.train.blocks import BlockBatch
from draftproof.train.elementwise import compute_dtype, gated, norm_rotate, rms_norm


@dataclass(frozen=True)
class PassRows:
    """What every layer needs to know of a pass.

    Attributes:
        rows: which rows belong together.
        slot_turn, context_turn: cosines and signed sines of the slots' and the context's positions, each ``[n, 1, head_dim]``.
    """

    rows: BlockRows
    slot_turn: tuple[torch.Tensor, torch.Tensor]
    context_turn: tuple[torch.Tensor, torch.Tensor]


class Gain(nn.Module):
    """A norm's factor, under the name that published checkpoints give it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class DraftAttention(nn.Module):
    """Attention of the blocks' slots over context and block."""

    def __init__(self, config: DrafterConfig, kind: LayerAttention) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        queries, keys, bias = config.num_heads * dim, config.num_kv_heads * dim, config.attention_bias
        self.q_proj = nn.Linear(hidden, queries, bias=bias)
        self.k_proj = nn.Linear(hidden, keys, bias=bias)
        self.v_proj = nn.Linear(hidden, keys, bias=bias)
        self.o_proj = nn.Linear(queries, hidden, bias=bias)
        self.q_norm, self.k_norm = Gain(dim), Gain(dim)
        sinks = nn.Parameter(torch.zeros(config.num_heads)) if config.attention_sinks else None
        self.attention_sink_bias: nn.Parameter | None
        self.register_parameter("attention_sink_bias", sinks)
        self._kind, self._eps, self._dim, self._value_scale = (
            kind,
            config.rms_norm_eps,
            dim,
            config.value_scale,
        )

    def forward(self, x: torch.Tensor, context: torch.Tensor, layout: PassRows) -> torch.Tensor:
        """``x [A * B, hidden]``, already normed, and ``context [T, hidden]`` to ``[A * B, hidden]``."""
        queries = self._split(self.q_proj(x))
        queries = norm_rotate(queries, self.q_norm.weight, *layout.slot_turn, self._eps)
        own_keys, own_values = self._keys_values(x, layout.slot_turn)
        keys, values = self._keys_values(context, layout.context_turn)
        out = block_attention(
            queries,
            own_keys,
            own_values,
            keys,
            values,
            layout.rows,
            self._kind,
            self.attention_sink_bias,
        )
        return self.o_proj(out)

    def _keys_values(
        self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys = norm_rotate(self._split(self.k_proj(x)), self.k_norm.weight, *turn, self._eps)
        values = self._split(self.v_proj(x))
        return keys, values if self._value_scale == 1.0 else values * self._value_scale

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], -1, self._dim)


class DraftMlp(nn.Module):
    """The gated MLP."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self._activation = config.hidden_act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, hidden] -> [rows, hidden]``."""
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x), self._activation))


class DraftLayer(nn.Module):
    """One decoder layer, whose queries are the blocks' slots only."""

    def __init__(self, config: DrafterConfig, kind: LayerAttention) -> None:
        super().__init__()
        self.input_layernorm = Gain(config.hidden_size)
        self.self_attn = DraftAttention(config, kind)
        self.post_attention_layernorm = Gain(config.hidden_size)
        self.mlp = DraftMlp(config)
        self._eps = config.rms_norm_eps

    def forward(self, x: torch.Tensor, context: torch.Tensor, layout: PassRows) -> torch.Tensor:
        """``[A * B, hidden] -> [A * B, hidden]``; `context` is ``[T, hidden]``, ``hidden_norm(fc(features))``."""
        x = x + self.self_attn(rms_norm(x, self.input_layernorm.weight, self._eps), context, layout)
        return x + self.mlp(rms_norm(x, self.post_attention_layernorm.weight, self._eps))


class _Borrowed:
    """A frozen matrix of the target, kept on the devices and in the dtypes that ask for it."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight.detach()
        self._kept: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def on(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        if self.weight.device == device and self.weight.dtype == dtype:
            return self.weight
        return self._kept.setdefault((device, dtype), self.weight.to(device, dtype))


class TrainableDrafter(nn.Module):
    """A DFlash drafter with trainable weights; parameters have the published names.

    Under autocast products are in its dtype, and the residual stream, norms and softmax in float32.

    Args:
        config: a DFlash config (not DFlash 2).
        embedding: the target's raw embedding ``[vocab, hidden]``, frozen.
        lm_head: the target's bare LM head ``[vocab, hidden]``, frozen.

    Raises:
        DrafterError: DP515, the config is of a kind that is not trained here; DP312, DP311, vocabulary or width differ.
    """

    def __init__(self, config: DrafterConfig, embedding: torch.Tensor, lm_head: torch.Tensor) -> None:
        super().__init__()
        _check(config, embedding, lm_head)
        taps = len(config.target_layer_ids)
        self.config = config
        self.fc = nn.Linear(taps * embedding.shape[1], config.hidden_size, bias=False)
        self.hidden_norm = Gain(config.hidden_size)
        self.layers = nn.ModuleList(DraftLayer(config, kind) for kind in config.layers)
        self.norm = Gain(config.hidden_size)
        self._embedding, self._head = _Borrowed(embedding), _Borrowed(lm_head)
        self._rotary: dict[torch.device, RotaryTable] = {}

    def forward(self, batch: BlockBatch) -> torch.Tensor:
        """Final hidden states of the mask slots, after the last norm: ``[A, B-1, hidden]``, in the dtype of the products.

        Slot k's state predicts the token at slot k; the anchor's predicts nothing and is left out.
        """
        config = self.config
        device = self.fc.weight.device
        dtype = compute_dtype(device) or self.fc.weight.dtype
        anchors, size = batch.block_ids.shape
        slots = (batch.anchor_positions[:, None] + torch.arange(size, device=device)).flatten()
        layout = PassRows(
            rows=BlockRows(
                batch.row_counts,
                batch.anchor_counts,
                batch.anchor_positions,
                tuple(batch.anchor_positions.tolist()),
                size,
            ),
            slot_turn=self._turn(slots),
            context_turn=self._turn(batch.positions),
        )
        context = self.fc(batch.features.to(dtype))
        context = rms_norm(context, self.hidden_norm.weight, config.rms_norm_eps)
        x = self._embed(batch.block_ids.flatten())
        for layer in self.layers:
            x = layer(x, context, layout)
        masks = x.view(anchors, size, -1)[:, 1:]
        return rms_norm(masks, self.norm.weight, config.rms_norm_eps)

    def logits(self, hidden: torch.Tensor, vocab: torch.Tensor | None = None) -> torch.Tensor:
        """Draft logits of ``hidden [..., hidden]``: ``[..., vocab]``, or only the columns of token ids ``vocab [n]``.

        The bare head, times the multiplier, then the drafter's own soft cap. See `loss.block_loss` for a loss that does not
        hold them all.
        """
        return cap_logits(functional.linear(hidden, self.head(hidden, vocab)), self.config)

    def head(self, like: torch.Tensor, vocab: torch.Tensor | None = None) -> torch.Tensor:
        """The frozen LM head ``[vocab, hidden]``, or its rows of ``vocab [n]``, on the device and in the dtype of `like`."""
        weight = self._head.on(like.device, like.dtype)
        return weight if vocab is None else weight[vocab]

    def published_tensors(self) -> dict[str, torch.Tensor]:
        """The trained weights by their published names, detached, on their device and in their dtype."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def load_published(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take a checkpoint's weights, in any float dtype.

        Raises:
            DrafterError: DP303 to DP308, they are not those of the config; DP515, they bring an embedding or LM head.
        """
        own = sorted(tensors.keys() & {"embed_tokens.weight", "lm_head.weight"})
        if own:
            raise DrafterError(
                "DP515",
                f"{self.config.source} brings {own[0]}; only drafters that borrow the target's are trained",
            )
        check_tensors(self.config, dict(tensors), self._embedding.weight.shape[1])
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(tensors[name])

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        rows = functional.embedding(ids, self._embedding.on(ids.device, self._embedding.weight.dtype))
        return rows.to(self.fc.weight.dtype) * self.config.embedding_scale

    def _turn(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table = self._rotary.get(positions.device)
        if table is None:
            table = RotaryTable(self.config.rope, torch.float32, positions.device)
            self._rotary[positions.device] = table
        return table.at(positions, int(positions.max()) + 1 if positions.numel() else 1)


def cap_logits(logits: torch.Tensor, config: DrafterConfig) -> torch.Tensor:
    """The multiplier and the soft cap that a drafter puts on the bare head's output."""
    if config.output_multiplier != 1.0:
        logits = logits * config.output_multiplier
    cap = config.softcap
    return logits if cap is None else (logits / cap).tanh() * cap


def _check(config: DrafterConfig, embedding: torch.Tensor, lm_head: torch.Tensor) -> None:
    if config.algorithm != "dflash":
        raise DrafterError(
            "DP515",
            f"{config.source} is a {config.algorithm} drafter; only plain DFlash drafters are trained",
        )
    for name, table in (("embedding", embedding), ("LM head", lm_head)):
        if table.shape[0] != config.vocab_size:
            raise DrafterError(
                "DP312",
                f"{config.source} has a vocabulary of {config.vocab_size} tokens, but the {name} has {table.shape[0]}",
            )
        if table.shape[1] != config.hidden_size:
            raise DrafterError(
                "DP311",
                f"{config.source} has hidden size {config.hidden_size}, but the {name} it borrows has {table.shape[1]}",
            )
