"""Asking the drafter, and checking what it says."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from draftproof.engine.sequence import Sequence
from draftproof.errors import DrafterError
from draftproof.models.drafters.base import Drafter, DraftProposal, DraftRequest
from draftproof.models.executor import TargetModel


@dataclass(frozen=True)
class Draft:
    """A checked proposal.

    Attributes:
        tokens: token ids to verify.
        confidence: the drafter's probability of each token it proposed, where it gives one; those of tokens dropped since
            come last.
        origin: who chose its length and tokens: ``"economist"`` the economist and the drafter; ``"request"`` the request its
            length; ``"prediction"`` the request its tokens. From the last two economics learns nothing.
    """

    tokens: list[int] = field(default_factory=list)
    confidence: list[float] | None = None
    origin: Literal["economist", "request", "prediction"] = "economist"

    def cut(self, count: int) -> Draft:
        """The first `count` tokens of it."""
        return self if count >= len(self.tokens) else replace(self, tokens=self.tokens[:count])


_NOTHING = Draft()


@dataclass(frozen=True)
class DraftRound:
    """The drafter's part of a step.

    Attributes:
        drafts: what to verify, one for each chunk of the plan; empty for chunks without.
        sequences: how many sequences were drafted for.
        slots: draft tokens asked for, all told.
        as_asked: whether requests had a say, whose drafts `sequences` and `slots` leave out.
    """

    drafts: list[Draft]
    sequences: int = 0
    slots: int = 0
    as_asked: bool = False

    @staticmethod
    def none(chunks: int) -> DraftRound:
        """Nothing drafted."""
        return DraftRound([_NOTHING] * chunks)


def propose(
    drafter: Drafter, target: TargetModel, sequences: Items[Sequence], lengths: Items[int]
) -> list[Draft]:
    """One drafter pass for all these sequences, `lengths` draft tokens each at most.

    Raises:
        DrafterError: DP318, the drafter answered with something else than token ids.
    """
    requests = [
        DraftRequest(
            state=sequence.running_memory.draft_state,
            tokens=sequence.tokens,
            num_draft_tokens=length,
            output_position=sequence.output_length,
            sampling=sequence.draft_sampling(),
        )
        for sequence, length in zip(sequences, lengths, strict=True)
    ]
    proposals = drafter.propose(requests)
    if len(proposals) != len(requests):
        raise _bad(f"{len(proposals)} proposals for {len(requests)} sequences")
    vocab_size = target.structure.vocab_size
    return [_checked(one, vocab_size, length) for one, length in zip(proposals, lengths, strict=True)]


def _checked(proposal: DraftProposal, vocab_size: int, length: int) -> Draft:
    """A proposal fit to be verified: drafters of other people's making may be wrong, and must not harm more than speed."""
    tokens = proposal.tokens
    if (
        not isinstance(tokens, torch.Tensor)
        or tokens.dim() != 1
        or tokens.dtype not in (torch.int64, torch.int32)
    ):
        raise _bad(
            f"tokens of shape {getattr(tokens, 'shape', None)} and type {getattr(tokens, 'dtype', type(tokens))}"
        )
    ids = tokens[:length].tolist()
    if any(not 0 <= token < vocab_size for token in ids):
        raise _bad(f"token ids outside 0..{vocab_size - 1}: {ids}")
    return Draft(ids, _checked_confidence(proposal.confidence, len(ids), length))


def _checked_confidence(confidence: object, count: int, length: int) -> list[float] | None:
    """The first `length` of them, at least one for each of `count` tokens; what is no probability counts as none at all."""
    if confidence is None:
        return None
    if not isinstance(confidence, torch.Tensor) or confidence.dim() != 1 or confidence.shape[0] < count:
        raise _bad(f"confidence of shape {getattr(confidence, 'shape', None)} for {count} tokens")
    return [chance if 0.0 <= chance <= 1.0 else 0.0 for chance in confidence[:length].tolist()]


def _bad(came: str) -> DrafterError:
    return DrafterError(
        "DP318", f"a drafter must propose one int64 tensor [k] of token ids per sequence, got {came}"
    )
