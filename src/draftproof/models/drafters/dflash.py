"""DFlash and DFlash 2: a block of mask tokens denoised in one pass over the target's hidden states.

The drafter reads the target twice: its tapped hidden states, through `extend`, become cached keys and values;
its embedding and LM head, through `TargetInfo`, turn tokens into slots and slots into tokens. Slot j's output
predicts the token at slot j; slot 0 is the anchor and predicts nothing (design section 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from draftproof.models.drafters.attention import Block
from draftproof.models.drafters.base import ContextUpdate, DraftProposal, DraftRequest, TargetInfo
from draftproof.models.drafters.checkpoint import Checkpoint
from draftproof.models.drafters.choice import choose_tokens, probability
from draftproof.models.drafters.context import DFlashState, build_encoder, store
from draftproof.models.drafters.dense import linear
from draftproof.models.drafters.kept_context import ContextKeeper, usable
from draftproof.models.drafters.layer import Tensors, build_layer, lay_out
from draftproof.models.drafters.rope import RotaryTable
from draftproof.models.drafters.selector import CandidateSelector
from draftproof.models.drafters.vocabulary import spread


class DFlashDrafter(ContextKeeper):
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
        super().__init__(config, target.hidden_size, block_size, dtype, target.device)
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
        known = checkpoint.vocabulary
        self._vocabulary = None if known is None else known.to(target.device)

    @torch.no_grad()
    def extend(self, updates: Sequence[ContextUpdate]) -> None:
        """Append context keys and values, all in one pass; see `Drafter.extend`.

        Raises:
            DrafterError: DP316 a start or the features' width is not what a state needs.
            RuntimeError: a table is too short for its tokens.
        """
        lengths = self._reserved(updates)
        features = [update.features for update in updates if update.features is not None]
        counts = [part.shape[0] for part in features]
        if not sum(counts):
            return
        starts = [update.start for update in updates]
        positions = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, counts, strict=True)])
        cos, sin = self._rotary.at(positions.to(self._device), max(lengths.values()))
        together = _joined(features).to(device=self._device, dtype=self._dtype)
        store([update.state for update in updates], starts, counts, self._encoder.encode(together, cos, sin))
        for update in updates:
            update.state.length = lengths[id(update.state)]

    @torch.no_grad()
    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """One pass over all requests' blocks; see `Drafter.propose`.

        A sequence whose hidden states are not finite (because the target's were not) gets no draft tokens from there on, the
        others get theirs. For DFlash 2 the confidence is by the logits before the selector rescores them.

        Raises:
            DrafterError: DP316 a state does not hold exactly the tokens before its anchor.
        """
        if not requests:
            return []
        draws = self._draws(requests)
        anchors = [int(request.tokens[-1]) for request in requests]
        ids = [
            [anchor] + [self.config.mask_token_id] * d.count for anchor, d in zip(anchors, draws, strict=True)
        ]
        hidden = self.block_hidden([request.state for request in requests], ids)
        # Anchors predict nothing, so their rows never reach the LM head.
        masks = [row for row, slot in enumerate(s for part in ids for s in range(len(part))) if slot]
        slots = hidden[torch.tensor(masks, dtype=torch.int64, device=self._device)]
        finite = slots.isfinite().all(-1, keepdim=True)
        slots = torch.where(finite, slots, 0.0)
        logits = self.logits(slots)
        if self._selector is None:
            tokens = choose_tokens(logits, draws)
        else:
            tokens = self._selector.choose(slots, logits, anchors, draws)
        counts = [draw.count for draw in draws]
        parts = zip(
            tokens.split(counts),
            probability(logits, tokens).split(counts),
            usable(finite.squeeze(-1), counts),
            strict=True,
        )
        return [DraftProposal(chosen[:count], likely[:count]) for chosen, likely, count in parts]

    def block_hidden(self, states: Sequence[DFlashState], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Final hidden states ``[rows, hidden]`` of a block of token ids for each sequence, block after block."""
        blocks: list[Block] = []
        for state, part in zip(states, ids, strict=True):
            first = blocks[-1].rows.stop if blocks else 0
            blocks.append(Block(range(first, first + len(part)), state.pages, state.table, state.length))
        layout = lay_out(blocks, self.config, self._dtype, self._device)
        cos, sin = self._rotary.at(layout.positions, layout.end)
        tokens = torch.tensor([token for part in ids for token in part], device=self._device)
        x = functional.embedding(tokens, self._embedding).to(self._dtype)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        for layer in self._layers:
            x = layer.forward(x, cos, sin, layout)
        return functional.rms_norm(x, (x.shape[-1],), self._norm, self.config.rms_norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Draft logits ``[rows, vocab]``: the bare head, times the multiplier, then the own soft cap; -inf for tokens that the
        checkpoint leaves out."""
        logits = self._head(hidden.to(self._head_dtype))
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.softcap
        logits = logits if cap is None else (logits / cap).tanh() * cap
        known = self._vocabulary
        return logits if known is None else spread(logits[:, known], known, self.config.vocab_size)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _selector(top_k: int, weights: Tensors) -> CandidateSelector:
    name = "candidate_selector"
    return CandidateSelector(
        predecessors=weights[f"{name}.predecessor_codebook.weight"],
        successors=weights[f"{name}.successor_codebook.weight"],
        projection=linear(weights[f"{name}.hidden_projection.weight"]),
        top_k=top_k,
    )
