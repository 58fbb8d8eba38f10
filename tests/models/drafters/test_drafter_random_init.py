"""The random checkpoints that tests of losslessness draft with."""

from __future__ import annotations

import pytest
import torch
from drafter_support import draft_request, extend, random_features, tiny_checkpoint, tiny_target
from safetensors.torch import load_file

from draftproof.errors import DrafterError
from draftproof.models.drafters import load_drafter


@pytest.mark.parametrize("dflash2", [False, True])
def test_it_loads_and_drafts(tmp_path, dflash2):
    folder = tiny_checkpoint(tmp_path / "a" / "b", dflash2=dflash2)
    drafter = load_drafter(folder, tiny_target().info)
    state = drafter.new_state()
    extend(drafter, state, random_features(9), 0)
    drafts = [
        drafter.propose([draft_request(state, 9, anchor, 7)])[0].tokens.tolist() for anchor in range(20)
    ]
    assert {len(tokens) for tokens in drafts} == {7}
    assert len({tuple(tokens) for tokens in drafts}) > 1


def test_the_seed_decides(tmp_path):
    a, b, c = (
        load_file(tiny_checkpoint(tmp_path / str(i), seed=s) / "model.safetensors")
        for i, s in enumerate((1, 1, 2))
    )
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not any(torch.equal(a[name], c[name]) for name in a)


def test_dtype(tmp_path):
    tensors = load_file(tiny_checkpoint(tmp_path / "d", dtype=torch.bfloat16) / "model.safetensors")
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}


def test_impossible_fields_are_refused(tmp_path):
    with pytest.raises(DrafterError):
        tiny_checkpoint(tmp_path / "d", num_heads=4, num_kv_heads=3)
