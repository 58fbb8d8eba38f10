"""Agreement with the reference implementation's outputs on its own small checkpoints, four steps each."""

from __future__ import annotations

import pytest
import torch
from drafter_plain import PlainDrafter
from drafter_support import GOLDEN, draft_request, extend, target_info
from safetensors.torch import load_file

from draftproof.models.drafters import load_drafter

NAMES = ("full", "sliding", "softcap", "dflash2")


def golden(name: str):
    expected = load_file(GOLDEN / name / "expected.safetensors")
    return expected, target_info(expected["embed_tokens.weight"], expected["lm_head.weight"], depth=12)


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_logits_and_tokens(name):
    expected, target = golden(name)
    drafter = load_drafter(GOLDEN / name, target)
    state = drafter.new_state()
    for step in range(4):
        want = {
            key: expected[f"step{step}.{key}"]
            for key in ("block_ids", "target_hidden", "hidden", "logits", "draft_tokens")
        }
        extend(drafter, state, want["target_hidden"], state.length)
        ids = want["block_ids"]
        hidden = drafter.block_hidden([state], [ids.tolist()])
        torch.testing.assert_close(hidden, want["hidden"], atol=1e-4, rtol=0)
        torch.testing.assert_close(drafter.logits(hidden[1:]), want["logits"], atol=1e-4, rtol=0)
        (proposal,) = drafter.propose([draft_request(state, state.length, int(ids[0]), len(ids) - 1)])
        assert proposal.tokens.tolist() == want["draft_tokens"].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_positions_of_the_golden_steps_are_ours(name):
    """The context's tokens and the block's slots sit where `extend` and `propose` put them."""
    expected, _ = golden(name)
    length = 0
    for step in range(4):
        fresh, rows = len(expected[f"step{step}.target_hidden"]), len(expected[f"step{step}.block_ids"])
        assert expected[f"step{step}.position_ids"].tolist() == list(range(length, length + fresh + rows))
        length += fresh


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_reading_agrees_too(name):
    """The oracle of the other tests is itself held against the reference."""
    expected, target = golden(name)
    plain = PlainDrafter(GOLDEN / name, target.embedding, expected["lm_head.weight"])
    features = torch.cat([expected[f"step{step}.target_hidden"] for step in range(2)])
    out = plain.run(features, int(expected["step1.block_ids"][0]), 7)
    torch.testing.assert_close(out.hidden.float(), expected["step1.hidden"], atol=1e-4, rtol=0)
    torch.testing.assert_close(out.logits.float(), expected["step1.logits"], atol=1e-4, rtol=0)
    assert out.tokens == expected["step1.draft_tokens"].tolist()


def test_an_off_by_one_tap_or_position_would_be_seen():
    """The tolerance is tight enough to tell a context shifted by one position from the right one."""
    expected, target = golden("full")
    drafter = load_drafter(GOLDEN / "full", target)
    state = drafter.new_state()
    features = expected["step0.target_hidden"]
    extend(drafter, state, torch.cat((features[:1], features)), 0)
    ids = expected["step0.block_ids"]
    hidden = drafter.block_hidden([state], [ids.tolist()])
    assert (hidden - expected["step0.hidden"]).abs().max() > 1e-2
