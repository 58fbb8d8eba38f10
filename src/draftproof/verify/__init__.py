"""Verification: which draft tokens stay, and what comes after them. Pure functions on tensors, any device, no model.

Needs nothing but torch and numpy. On CPU tensors, with numba installed, compiled kernels do the work; elsewhere plain
PyTorch does. See `docs/verification.md`.
"""

from draftproof.verify.config import VerifyConfig
from draftproof.verify.distribution import target_probs
from draftproof.verify.drafter_invariant import (
    gumbel_choice,
    sample_checked,
    verify_drafter_invariant,
    warm_up,
)
from draftproof.verify.greedy import compute_dflash_correct_drafts_and_bonus, verify_greedy
from draftproof.verify.gumbel import gumbel_noise
from draftproof.verify.rejection import verify_rejection
from draftproof.verify.sampling_info import TOP_K_ALL, SamplingInfo, SamplingInfoLike
from draftproof.verify.target_only import compute_dflash_sampling_correct_drafts_and_bonus

__all__ = [
    "TOP_K_ALL",
    "SamplingInfo",
    "SamplingInfoLike",
    "VerifyConfig",
    "compute_dflash_correct_drafts_and_bonus",
    "compute_dflash_sampling_correct_drafts_and_bonus",
    "gumbel_choice",
    "gumbel_noise",
    "sample_checked",
    "target_probs",
    "verify_drafter_invariant",
    "verify_greedy",
    "verify_rejection",
    "warm_up",
]
