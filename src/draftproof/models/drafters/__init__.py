"""Drafters: what proposes tokens. One file an algorithm, one seam (`base`), one way in (`load_drafter`)."""

from __future__ import annotations

from draftproof.models.drafters.base import (
    ContextUpdate,
    Drafter,
    DraftProposal,
    DraftRequest,
    DraftSampling,
    TargetInfo,
)
from draftproof.models.drafters.load import load_drafter
from draftproof.models.drafters.random_init import write_random_checkpoint

__all__ = [
    "ContextUpdate",
    "DraftProposal",
    "DraftRequest",
    "DraftSampling",
    "Drafter",
    "TargetInfo",
    "load_drafter",
    "write_random_checkpoint",
]
