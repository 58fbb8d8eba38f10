"""Defaults of the verification rules: the one place where they are written down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VerifyConfig:
    """Thresholds of the target-only rule; at 1.0 both leave it lossless, lower ones trade exactness for acceptance.

    Attributes:
        threshold_single: a draft token is kept outright when its target probability is at least this.
        threshold_acc: the target probability is divided by this before the coin is compared with it.
    """

    threshold_single: float = 1.0
    threshold_acc: float = 1.0


DEFAULTS = VerifyConfig()

THRESHOLD_ACC_FLOOR = 1e-9
"""`threshold_acc` divides, so it is never taken below this."""
