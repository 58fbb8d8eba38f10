"""Proofs of the three promises on the user's own model, drafter and machine: plain functions that return dataclasses."""

from draftproof.audit.differences import Difference, TokenSeen, first_difference
from draftproof.audit.lossless import Case, LosslessOptions, LosslessReport, prove_lossless
from draftproof.audit.prompts import BUILT_IN, AuditPrompt, read_prompts
from draftproof.audit.report import as_document, as_table, as_text
from draftproof.audit.speed import SpeedOptions, SpeedReport, SpeedRow, prove_speed
from draftproof.audit.whole import FeatureRow, WholeOptions, WholeReport, prove_whole

__all__ = [
    "BUILT_IN",
    "AuditPrompt",
    "Case",
    "Difference",
    "FeatureRow",
    "LosslessOptions",
    "LosslessReport",
    "SpeedOptions",
    "SpeedReport",
    "SpeedRow",
    "TokenSeen",
    "WholeOptions",
    "WholeReport",
    "as_document",
    "as_table",
    "as_text",
    "first_difference",
    "prove_lossless",
    "prove_speed",
    "prove_whole",
    "read_prompts",
]
