"""Fixtures shared by the tests of the verification rules."""

from __future__ import annotations

import pytest

from draftproof.verify import kernels


@pytest.fixture(params=["kernels", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test on the compiled kernels, and on plain PyTorch."""
    if request.param == "kernels":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(kernels, "available", lambda logits: False)
    return str(request.param)
