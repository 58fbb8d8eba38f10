"""DFlash and DFlash 2: a block of mask tokens denoised in one pass over the target's hidden states.

The drafter reads the target twice: its tapped hidden states, through `extend`, become cached keys and values;
its embedding and LM head, through `TargetInfo`, turn tokens into slots and slots into tokens. Slot j's output
predicts the token at slot j; slot 0 is the anchor and predicts nothing (design section 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from draftproof.errors import DrafterError
from draftproof.models.drafters.base import DraftProposal, DraftRequest, TargetInfo
from draftproof.models.drafters.checkpoint import Checkpoint
from draftproof.models.drafters.choice import choose_tokens
from draftproof.models.drafters.context import DFlashState, build_encoder
from draftproof.models.drafters.dense import linear
from draftproof.models.drafters.layer import Block, Tensors, build_layer
from draftproof.models.drafters.rope import RotaryTable
from draftproof.models.drafters.selector import CandidateSelector

_FIRST_CAPACITY = 256


class DFlashDrafter:
    """A DFlash or DFlash 2 checkpoint as a `Drafter`. See `Drafter` for the methods' contract.

    Args:
        checkpoint: read and checked against `target`.
        target: whose embedding and LM head it borrows where the checkpoint brings none.
        block_size: anchor plus mask slots of the longest block, at most the checkpoint's own.
        dtype: in which it computes.
    """

    def __init__(
        self, checkpoint: Checkpoint, target: TargetInfo, block_size: int, dtype: torch.dtype
    ) -> None:
        config = checkpoint.config
        self.name: str = config.algorithm
        self.max_draft_tokens = block_size - 1
        self.tap_layer_ids = config.target_layer_ids
        self.config = config
        self._dtype, self._device = dtype, target.device
        self._feature_width = len(config.target_layer_ids) * target.hidden_size
        weights = {name: t.to(device=target.device, dtype=dtype) for name, t in checkpoint.tensors.items()}
        self._encoder = build_encoder(config, weights)
        self._layers = [build_layer(config, weights, index) for index in range(config.num_layers)]
        self._norm = weights["norm.weight"]
        self._selector = _selector(config.selector.top_k, weights) if config.selector else None
        self._rotary = RotaryTable(config.rope, dtype, target.device)
        self._embedding = weights.get("embed_tokens.weight", target.embedding)
        own_head = weights.get("lm_head.weight")
        if own_head is None and config.tie_word_embeddings:
            own_head = weights.get("embed_tokens.weight")
        self._head = target.lm_head if own_head is None else linear(own_head)
        self._head_dtype = target.dtype if own_head is None else dtype

    def new_state(self) -> DFlashState:
        config = self.config
        shape = (config.num_layers, 2, config.num_kv_heads, _FIRST_CAPACITY, config.head_dim)
        return DFlashState(torch.empty(shape, dtype=self._dtype, device=self._device))

    @torch.no_grad()
    def extend(self, state: DFlashState, features: torch.Tensor | None, start: int) -> None:
        """Append context keys and values; see `Drafter.extend`.

        Raises:
            DrafterError: DP316 `start` or the features' width is not what this state needs.
        """
        if features is None or features.ndim != 2 or features.shape[1] != self._feature_width:
            got = None if features is None else tuple(features.shape)
            raise DrafterError(
                "DP316", f"context features must have shape (n, {self._feature_width}), got {got}"
            )
        if start != state.length:
            raise DrafterError(
                "DP316",
                f"context features start at position {start}, but the drafter holds {state.length} tokens",
            )
        count = features.shape[0]
        if count == 0:
            return
        state.reserve(start + count)
        cos, sin = self._rotary.at(start, count)
        keys, values = self._encoder.encode(features.to(device=self._device, dtype=self._dtype), cos, sin)
        state.cache[:, 0, :, start : start + count] = keys
        state.cache[:, 1, :, start : start + count] = values
        state.length = start + count

    @torch.no_grad()
    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """One pass over all requests' blocks; see `Drafter.propose`.

        Raises:
            DrafterError: DP316 a state does not hold exactly the tokens before its anchor.
        """
        if not requests:
            return []
        for request in requests:
            _check_in_step(request)
        counts = [min(request.num_draft_tokens, self.max_draft_tokens) for request in requests]
        blocks = _blocks(requests, counts)
        hidden = self.block_hidden(
            [self._block_ids(r, k) for r, k in zip(requests, counts, strict=True)], blocks
        )
        # Anchors predict nothing, so their rows never reach the LM head.
        slots = [hidden[block.rows][1:] for block in blocks]
        logits = self.logits(slots[0] if len(slots) == 1 else torch.cat(slots)).split(counts)
        return [
            DraftProposal(self._choose(request, slot, row))
            for request, slot, row in zip(requests, slots, logits, strict=True)
        ]

    def block_hidden(self, ids: Sequence[torch.Tensor], blocks: Sequence[Block]) -> torch.Tensor:
        """Final hidden states ``[rows, hidden]`` of blocks of token ids, one tensor of ids a block."""
        tables = [self._rotary.at(block.length, block.rows.stop - block.rows.start) for block in blocks]
        cos, sin = (part[0] if len(part) == 1 else torch.cat(part) for part in zip(*tables, strict=True))
        tokens = ids[0] if len(ids) == 1 else torch.cat(list(ids))
        x = functional.embedding(tokens, self._embedding).to(self._dtype)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        for layer in self._layers:
            x = layer.forward(x, cos, sin, blocks)
        return functional.rms_norm(x, (x.shape[-1],), self._norm, self.config.rms_norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Draft logits ``[rows, vocab]``: the bare head, times the multiplier, then the own soft cap."""
        logits = self._head(hidden.to(self._head_dtype))
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.softcap
        return logits if cap is None else (logits / cap).tanh() * cap

    def _block_ids(self, request: DraftRequest, count: int) -> torch.Tensor:
        ids = [int(request.tokens[-1])] + [self.config.mask_token_id] * count
        return torch.tensor(ids, dtype=torch.int64, device=self._device)

    def _choose(self, request: DraftRequest, hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if self._selector is not None:
            anchor = int(request.tokens[-1])
            return self._selector.choose(hidden, logits, anchor, request.sampling, request.output_position)
        return choose_tokens(logits, request.sampling, request.output_position)


def _check_in_step(request: DraftRequest) -> None:
    have, need = request.state.length, len(request.tokens) - 1
    if have != need:
        raise DrafterError(
            "DP316",
            f"the drafter holds the context of {have} tokens, but {need} tokens lie before the anchor; "
            "every committed token except the last must have been given to extend, once",
        )


def _blocks(requests: Sequence[DraftRequest], counts: Sequence[int]) -> list[Block]:
    blocks: list[Block] = []
    start = 0
    for request, count in zip(requests, counts, strict=True):
        state, rows = request.state, count + 1
        state.reserve(state.length + rows)
        blocks.append(Block(slice(start, start + rows), state.cache, state.length))
        start += rows
    return blocks


def _selector(top_k: int, weights: Tensors) -> CandidateSelector:
    name = "candidate_selector"
    return CandidateSelector(
        predecessors=weights[f"{name}.predecessor_codebook.weight"],
        successors=weights[f"{name}.successor_codebook.weight"],
        projection=linear(weights[f"{name}.hidden_projection.weight"]),
        top_k=top_k,
    )
