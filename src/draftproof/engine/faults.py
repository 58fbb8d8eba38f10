"""Errors that come up while requests run: every one gets a code, so that a caller always knows what to look up."""

from __future__ import annotations

from draftproof.errors import DraftproofError, EngineError


def as_coded(error: Exception) -> DraftproofError:
    """The error itself where it has a code, else DP451 with the cause attached."""
    if isinstance(error, DraftproofError):
        return error
    coded = EngineError(
        "DP451",
        f"a step failed ({type(error).__name__}: {error}); the requests it touched ended, the engine goes on",
    )
    coded.__cause__ = error
    return coded
