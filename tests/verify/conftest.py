"""Fixtures shared by the tests of the verification rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from draftproof.verify import kernels


@pytest.fixture(params=["kernels", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test on the compiled kernels, and on plain PyTorch."""
    if request.param == "kernels":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(kernels, "available", lambda logits: False)
    return str(request.param)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Thousands of small tensor operations: on a busy machine, waiting for a second thread at each takes most of the
    time. Tests about threads set their own number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
