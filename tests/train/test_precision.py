"""Which precision a trainer takes where."""

import pytest
import torch

from draftproof.train import precision
from draftproof.train.precision import autocast, precision_on

CPU = torch.device("cpu")


@pytest.mark.parametrize("wanted", ["bfloat16", "float32"])
def test_what_is_asked_for_is_taken(wanted: str) -> None:
    assert precision_on(CPU, wanted) == wanted


@pytest.mark.parametrize(
    ("onednn", "named", "expected"),
    [
        (True, {"architecture": "x86_64", "avx512_bf16": True}, "bfloat16"),
        (True, {"architecture": "x86_64", "amx_bf16": True}, "bfloat16"),
        (True, {"architecture": "x86_64", "avx512_f": True, "avx512_bf16": False}, "float32"),
        (False, {"architecture": "x86_64", "avx2": True}, "float32"),
        (True, {"architecture": "aarch64"}, "bfloat16"),
        (False, {"architecture": "aarch64"}, "float32"),
    ],
)
def test_auto_follows_the_processor(
    onednn: bool, named: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_onednn_takes_bfloat16", lambda: onednn)
    monkeypatch.setattr(precision, "_capabilities", lambda: named)
    assert precision_on(CPU, "auto") == expected


def test_products_are_in_the_precision_that_is_said() -> None:
    x = torch.ones(2, 2)
    for wanted in ("auto", "bfloat16", "float32"):
        with autocast(CPU, wanted):
            found = (x @ x).dtype
        assert found == getattr(torch, precision_on(CPU, wanted))
