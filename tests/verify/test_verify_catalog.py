"""The examples of every DP1xx explanation do what they say: `before` raises that very code, `after` runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import draftproof.verify
from draftproof.errors import ContractError, Explanation
from draftproof.errors.catalog.verify import EXPLANATIONS


def namespace() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    names = {name: getattr(draftproof.verify, name) for name in draftproof.verify.__all__}
    return names | {
        "torch": torch,
        "candidates": torch.randint(0, 50, (2, 4), generator=generator),
        "logits": torch.randn(8, 50, generator=generator),
        "info": draftproof.verify.SamplingInfo.of(temperature=0.8, batch_size=2),
        "seeds": torch.tensor([1, 2]),
        "positions": torch.tensor([0, 0]),
    }


def run(code: str) -> None:
    exec(code.replace("'cuda'", "'meta'"), namespace())


@pytest.mark.parametrize("entry", EXPLANATIONS, ids=[e.code for e in EXPLANATIONS])
def test_examples(entry: Explanation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTPROOF_DEBUG", raising=False)  # an example may set it; undone afterwards
    monkeypatch.setenv("DRAFTPROOF_DEBUG", "0")
    torch.manual_seed(0)
    with pytest.raises(ContractError) as caught:
        run(entry.before)
    assert caught.value.code == entry.code
    run(entry.after)


def test_the_two_central_errors_come_first() -> None:
    assert [(e.code, e.name) for e in EXPLANATIONS[:2]] == [
        ("DP105", "logit-row-count-mismatch"),
        ("DP106", "logits-device-mismatch"),
    ]


def test_messages_in_the_central_examples_are_the_real_ones() -> None:
    for entry in EXPLANATIONS[:2]:
        with pytest.raises(ContractError) as caught:
            run(entry.before)
        shown = entry.before.rsplit("# ", 1)[1].strip()
        assert str(caught.value) == shown.replace("cuda:0", "meta")
