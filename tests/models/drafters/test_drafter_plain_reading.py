"""Agreement with the plain reading of design section 4, field by field, where the goldens are silent."""

from __future__ import annotations

import pytest
import torch
from drafter_plain import PlainDrafter
from drafter_support import draft_request, extend, random_features, tiny_checkpoint, tiny_target

from draftproof.models.drafters import load_drafter

SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
ALL_SLIDING = {"layer_types": ["sliding_attention"] * 2}
TOP_WINDOW = {"use_sliding_window": True, "sliding_window": 4}

# name -> (top-level fields, dflash_config fields, further options)
VARIANTS = {
    "plain": ({}, {}, {}),
    "biases": ({"attention_bias": True}, {}, {}),
    "one kv head": ({}, {}, {"num_kv_heads": 1}),
    "as many kv heads": ({}, {}, {"num_kv_heads": 4}),
    "relu": ({"hidden_act": "relu"}, {}, {}),
    "gelu": ({"hidden_act": "gelu"}, {}, {}),
    "rope_parameters": (
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {},
        {},
    ),
    "top is_causal": ({"is_causal": True}, {}, {}),
    "own causal": ({}, {"causal": True}, {}),
    "is_causal wins over causal": ({"is_causal": False}, {"causal": True}, {}),
    "sliding types are causal": ({**SLIDING, **TOP_WINDOW}, {}, {}),
    "sliding types, not causal": ({**ALL_SLIDING, **TOP_WINDOW, "is_causal": False}, {}, {}),
    "sliding types, own not causal": ({**SLIDING, **TOP_WINDOW}, {"causal": False}, {}),
    "sliding types, all causal": ({**SLIDING, **TOP_WINDOW}, {"causal": True}, {}),
    "sliding types without a window": ({**SLIDING, "sliding_window": 4}, {}, {}),
    "own window": (SLIDING, {"swa_window_size": 3}, {}),
    "own window wins": ({**SLIDING, **TOP_WINDOW}, {"swa_window_size": 6}, {}),
    "use_swa": ({}, {"use_swa": True, "swa_window_size": 4}, {}),
    "use_swa, top window": ({"sliding_window": 5}, {"use_swa": True}, {}),
    "use_swa with sliding types": (SLIDING, {"use_swa": True, "swa_window_size": 4}, {}),
    "use_swa causal": ({}, {"use_swa": True, "swa_window_size": 4, "causal": True}, {}),
    "window of one": ({}, {"use_swa": True, "swa_window_size": 1}, {}),
    "window wider than the text": ({}, {"use_swa": True, "swa_window_size": 99}, {}),
    "sinks": ({}, {"attention_sink_bias": True}, {}),
    "sinks, window, causal": (
        {**SLIDING, **TOP_WINDOW},
        {"attention_sink_bias": True},
        {},
    ),
    "value scale": ({}, {"attention_value_scale": 0.6}, {}),
    "embedding scale": ({}, {"input_embedding_scale": 5.5}, {}),
    "output multiplier": ({}, {"output_multiplier": 0.3}, {}),
    "soft cap": ({}, {"final_logit_softcapping": 2.0, "output_multiplier": 1.7}, {}),
    "dflash2": ({}, {}, {"dflash2": True}),
    "dflash2, wide kernel": ({}, {"conv_kernel_size": 5, "conv_group_size": 4}, {"dflash2": True}),
    "dflash2, sinks and scales": (
        {**SLIDING, **TOP_WINDOW, "attention_bias": True},
        {"attention_sink_bias": True, "attention_value_scale": 1.3, "input_embedding_scale": 0.5},
        {"dflash2": True},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_field(tmp_path, variant):
    top, own, options = VARIANTS[variant]
    folder = tiny_checkpoint(tmp_path / "drafter", block_size=6, top=top, dflash_config=own, **options)
    compare(folder, contexts=(3, 1, 6), counts=(5, 5, 5))


@pytest.mark.parametrize("dflash2", [False, True])
def test_shorter_blocks(tmp_path, dflash2):
    """A draft of k tokens runs the anchor and k mask tokens, not a longer block that is cut afterwards."""
    folder = tiny_checkpoint(tmp_path / "drafter", block_size=6, dflash2=dflash2)
    compare(folder, contexts=(4, 1, 2, 1), counts=(1, 3, 5, 2))


def test_block_at_the_very_start(tmp_path):
    """No context at all: the anchor is the first token of the text."""
    folder = tiny_checkpoint(tmp_path / "drafter", block_size=4)
    compare(folder, contexts=(0, 1), counts=(3, 3))


def compare(folder, contexts, counts):
    target = tiny_target()
    drafter = load_drafter(folder, target.info)
    plain = PlainDrafter(folder, target.info.embedding, target.head)
    features, state = random_features(sum(contexts)), drafter.new_state()
    for step, (fresh, count) in enumerate(zip(contexts, counts, strict=True)):
        extend(drafter, state, features[state.length : state.length + fresh], state.length)
        length, anchor = state.length, 7 + step
        want = plain.run(features[:length], anchor, count)
        ids = [anchor] + [drafter.config.mask_token_id] * count
        hidden = drafter.block_hidden([state], [ids])
        torch.testing.assert_close(hidden.double(), want.hidden, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(drafter.logits(hidden[1:]).double(), want.logits, atol=1e-4, rtol=1e-5)
        (proposal,) = drafter.propose([draft_request(state, length, anchor, count)])
        assert proposal.tokens.tolist() == want.tokens


NEUTRAL = ("plain", "window wider than the text", "is_causal wins over causal")


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in NEUTRAL])
def test_every_field_matters(tmp_path, variant):
    """Each variant differs from the same checkpoint without its fields, so the test above can fail."""
    top, own, options = VARIANTS[variant]
    target, features = tiny_target(), random_features(10)
    plain_folder = tiny_checkpoint(tmp_path / "plain", block_size=6)
    folder = tiny_checkpoint(tmp_path / "variant", block_size=6, top=top, dflash_config=own, **options)
    outs = [
        PlainDrafter(f, target.info.embedding, target.head).run(features, 7, 5).logits
        for f in (plain_folder, folder)
    ]
    assert (outs[0] - outs[1]).abs().max() > 1e-3
