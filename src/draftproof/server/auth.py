"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from fastapi import Request

from draftproof.errors import ServerError
from draftproof.server.logs import note_of
from draftproof.server.state import server_of

ANYBODY = "-"
"""Stands for the caller where no keys are asked for."""


async def caller_key(request: Request) -> str:
    """Whose request it is: a short hash of the key, for limits and logs.

    Raises:
        ServerError: DP601, a key is asked for and this is none.
    """
    keys = server_of(request).settings.api_keys
    if not keys:
        return ANYBODY
    given = _given(request)
    if not is_known(given, keys):
        problem = "an API key is needed" if not given else "this API key is not known"
        raise ServerError("DP601", f"{problem}: send it as 'Authorization: Bearer KEY'")
    name = key_name(given)
    note_of(request.scope).key = name
    return name


def is_known(given: str, keys: Sequence[str]) -> bool:
    """Whether `given` is one of `keys`. All are looked at, each in constant time, so that time tells nothing."""
    asked = hashlib.sha256(given.encode()).digest()  # of one length, whatever came
    fits = [hmac.compare_digest(asked, hashlib.sha256(key.encode()).digest()) for key in keys]
    return any(fits)


def _given(request: Request) -> str:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "").strip()


def key_name(key: str) -> str:
    """What a key is called in logs and counters; it cannot be turned back."""
    return hashlib.sha256(key.encode()).hexdigest()[:10]
