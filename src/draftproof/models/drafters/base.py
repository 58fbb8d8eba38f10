"""The seam between the engine and whatever proposes tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class TargetInfo:
    """What a drafter may borrow from its target, and what it is checked against.

    Attributes:
        name: how the user named the target, for messages.
        hidden_size: width of the target's hidden states.
        num_layers: number of the target's decoder layers.
        vocab_size: rows of the target's embedding and of its LM head.
        max_position: the target's context length, tokens.
        embedding: the raw embedding weight ``[vocab, hidden]``; rows are looked up without any scale.
        lm_head: the bare LM head, ``[rows, hidden] -> [rows, vocab]``: no soft cap, no logit scale.
        dtype: dtype of the target's weights.
        device: where the target lives.
        model_type: the target's Transformers ``model_type``.
    """

    name: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position: int
    embedding: torch.Tensor
    lm_head: Callable[[torch.Tensor], torch.Tensor]
    dtype: torch.dtype
    device: torch.device
    model_type: str


@dataclass(frozen=True)
class DraftSampling:
    """How the request samples, so that the drafter can make the choice the target is likely to make.

    `temperature` 0 means greedy. `top_k` 0 or less means all; `top_p` 1 and `min_p` 0 mean off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class DraftRequest:
    """One sequence's wish for draft tokens.

    Attributes:
        state: what `new_state` made for this sequence.
        tokens: all committed tokens, prompt first; the last one is the anchor.
        num_draft_tokens: how many tokens to propose at most, >= 1.
        output_position: output index (0 = first generated token) of the first draft token.
        sampling: the request's sampling.
    """

    state: Any
    tokens: Sequence[int]
    num_draft_tokens: int
    output_position: int
    sampling: DraftSampling


@dataclass(frozen=True)
class DraftProposal:
    """What a drafter answers.

    Attributes:
        tokens: int64 ``[k]`` on the target's device, ``0 <= k <= num_draft_tokens``.
    """

    tokens: torch.Tensor


class Drafter(Protocol):
    """What proposes tokens. One object serves many sequences; what belongs to one lives in its state."""

    name: str
    """Short name for messages and results, e.g. ``"dflash"``."""
    max_draft_tokens: int
    """The most tokens one proposal can hold (``block_size - 1`` for DFlash)."""
    tap_layer_ids: tuple[int, ...]
    """Target layers whose outputs it needs; empty when it needs none."""

    def new_state(self) -> Any:
        """Per-sequence memory for a sequence with nothing committed yet."""
        ...

    def extend(self, state: Any, features: torch.Tensor | None, start: int) -> None:
        """Take in the context features of tokens the target has processed and the engine has committed.

        Args:
            state: the sequence's state; changed in place.
            features: ``[n, num_taps * hidden]``, taps in the order of `tap_layer_ids`; None when there are no
                taps.
            start: position of the first of the n tokens; must equal the number taken in so far.
        """
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """Propose for every request, in order. Sequences never influence each other's proposals."""
        ...
