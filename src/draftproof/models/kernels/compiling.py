"""`compiled`, for all functions of this folder: one pass through a model is a single function that calls into several files."""

from __future__ import annotations

from pathlib import Path

from draftproof.verify.kernels.compiling import compiler, stamp_of, target_features

__all__ = ["FOLDER", "compiled", "stamp_of", "target_features"]

FOLDER = Path(__file__).parent
compiled = compiler(FOLDER)
