"""The seam between the engine and whatever proposes tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from draftproof.models.kernels.packing import PackedWeight


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
        packed_head: the LM head as compiled products read it, where the target has it in that form.
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
    packed_head: PackedWeight | None = None


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
class ContextUpdate:
    """Tokens of one sequence that the target has processed and the engine has committed.

    Attributes:
        state: what `new_state` made for this sequence.
        features: ``[n, num_taps * hidden]``, taps in the order of `tap_layer_ids`; None when there are no taps.
        start: position of the first of the n tokens; must equal the number taken in so far.
    """

    state: Any
    features: torch.Tensor | None
    start: int


@dataclass(frozen=True)
class DraftProposal:
    """What a drafter answers.

    Attributes:
        tokens: int64 ``[k]`` on the target's device, ``0 <= k <= num_draft_tokens``.
        confidence: float32 ``[k]`` in [0, 1]: the drafter's own probability of each proposed token, by the softmax of its draft
            logits at temperature 1, whatever the request's temperature. None when it has none.
    """

    tokens: torch.Tensor
    confidence: torch.Tensor | None = None


class Drafter(Protocol):
    """What proposes tokens. One object serves many sequences; what belongs to one lives in its state.

    A drafter that caches something for every committed token (its context KV) keeps it in *pages* of `KEY_BLOCK` positions:
    position p of a sequence lies in page ``table[p // KEY_BLOCK]`` at offset ``p % KEY_BLOCK``. The table is the one that serves
    the target's keys and values too; whoever owns it changes it in place, the drafter only reads it. Several sequences may share
    a page, so a drafter writes nothing but the positions it is given by `extend`.
    """

    name: str
    """Short name for messages and results, e.g. ``"dflash"``."""
    max_draft_tokens: int
    """The most tokens one proposal can hold (``block_size - 1`` for DFlash)."""
    tap_layer_ids: tuple[int, ...]
    """Target layers whose outputs it needs; empty when it needs none."""
    page_bytes: int
    """Memory of one page of its context KV; 0 when it keeps none."""

    def new_pages(self, num_pages: int) -> Any:
        """Memory for `num_pages` pages, zeros; None when `page_bytes` is 0."""
        ...

    def copy_page(self, pages: Any, source: int, destination: int) -> None:
        """Make page `destination` equal to page `source` (copy on write)."""
        ...

    def new_state(self, pages: Any = None, table: list[int] | None = None, length: int = 0) -> Any:
        """What belongs to one sequence.

        Args:
            pages: from `new_pages`; None for private memory that grows by itself.
            table: the sequence's page table, shared with its owner; needed with `pages`.
            length: tokens whose context the pages hold already (a cached prefix, a fork); 0 with private memory.
        """
        ...

    def extend(self, updates: Sequence[ContextUpdate]) -> None:
        """Take in committed tokens of several sequences. When it raises, no state has changed."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """Propose for every request, in order. Sequences never influence each other's proposals."""
        ...
