"""How ``config.json`` is resolved: taps, windows, causality, RoPE, and where fields may stand."""

from __future__ import annotations

import json

import pytest
import torch
from drafter_support import GOLDEN, tiny_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.models.drafters.config import LayerAttention, default_taps, read_config
from draftproof.models.drafters.rope import RopeSettings, RotaryTable, inverse_frequencies, rotate

FULL, SLIDING = "full_attention", "sliding_attention"


def resolve(tmp_path, top=None, own=None, **options):
    return read_config(tiny_checkpoint(tmp_path / "drafter", top=top, dflash_config=own, **options))


def test_the_golden_dflash2_config():
    config = read_config(GOLDEN / "dflash2")
    assert (config.algorithm, config.block_size, config.mask_token_id) == ("dflash2", 8, 210)
    assert config.target_layer_ids == (1, 4, 8)
    assert (config.conv.kernel_size, config.conv.group_size) == (3, 16)
    assert (config.selector.rank, config.selector.top_k) == (8, 6)
    assert config.rope.theta == 1e6
    assert config.layers == (LayerAttention(None, False),) * 3


@pytest.mark.parametrize(
    ("layers", "depth", "taps"),
    [
        (1, 30, (15,)),
        (1, 7, (3,)),
        (2, 12, (1, 9)),
        (3, 12, (1, 5, 9)),
        (5, 36, (1, 9, 17, 25, 33)),
        (3, 11, (1, 4, 8)),  # 4.5 rounds to the even 4
        (3, 13, (1, 6, 10)),  # 5.5 rounds to the even 6
        (2, 4, (1, 1)),
    ],
)
def test_default_taps(layers, depth, taps):
    assert default_taps(layers, depth) == taps


def test_default_taps_follow_the_file_then_the_target(tmp_path):
    folder = tiny_checkpoint(tmp_path / "drafter", target_layer_ids=None, num_layers=3, num_target_layers=12)
    assert read_config(folder, num_target_layers=30).target_layer_ids == (1, 5, 9)
    config = json.loads((folder / "config.json").read_text())
    del config["num_target_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    assert read_config(folder, num_target_layers=30).target_layer_ids == (1, 14, 27)


@given(layers=st.integers(2, 8), depth=st.integers(4, 128))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_default_taps_ascend_within_the_target(layers, depth):
    taps = default_taps(layers, depth)
    assert len(taps) == layers
    assert list(taps) == sorted(taps)
    assert taps[0] == 1
    assert taps[-1] == depth - 3


@pytest.mark.parametrize(
    ("top", "own", "layers"),
    [
        ({}, {}, [(None, False), (None, False)]),
        (
            {"layer_types": [SLIDING, FULL], "use_sliding_window": True, "sliding_window": 9},
            {},
            [(9, True), (None, False)],
        ),
        ({"layer_types": [SLIDING, FULL], "sliding_window": 9}, {}, [(None, True), (None, False)]),
        ({"layer_types": [SLIDING, FULL]}, {"swa_window_size": 5}, [(5, True), (None, False)]),
        (
            {"layer_types": [SLIDING, FULL]},
            {"use_swa": True, "swa_window_size": 5},
            [(5, True), (None, False)],
        ),
        ({"layer_types": [FULL, FULL]}, {"use_swa": True, "swa_window_size": 5}, [(5, False), (5, False)]),
        ({"sliding_window": 9}, {"use_swa": True}, [(9, False), (9, False)]),
        ({"sliding_window": 9}, {"use_swa": True, "swa_window_size": 5}, [(5, False), (5, False)]),
        ({"sliding_window": 9}, {"use_swa": False}, [(None, False), (None, False)]),
        ({"use_swa": True, "swa_window_size": 5}, {}, [(5, False), (5, False)]),
        (
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
            {},
            [(None, False), (9, True)],
        ),
        ({"is_causal": True}, {"causal": False}, [(None, True), (None, True)]),
        (
            {"is_causal": False, "layer_types": [SLIDING, FULL]},
            {"swa_window_size": 5},
            [(5, False), (None, False)],
        ),
        ({"layer_types": [SLIDING, FULL]}, {"causal": True, "swa_window_size": 5}, [(5, True), (None, True)]),
        ({}, {"causal": True}, [(None, True), (None, True)]),
    ],
)
def test_windows_and_causality(tmp_path, top, own, layers):
    config = resolve(tmp_path, top, own)
    assert [(layer.window, layer.causal) for layer in config.layers] == layers


def test_dflash_config_wins_over_the_top_level(tmp_path):
    config = resolve(tmp_path, {"block_size": 16, "mask_token_id": 3}, {"block_size": 4, "mask_token_id": 9})
    assert (config.block_size, config.mask_token_id) == (4, 9)


def test_the_top_level_serves_where_dflash_config_is_silent(tmp_path):
    config = resolve(
        tmp_path, {"input_embedding_scale": 2.0, "attention_value_scale": 0.5, "output_multiplier": 3.0}
    )
    assert (config.embedding_scale, config.value_scale, config.output_multiplier) == (2.0, 0.5, 3.0)


def test_neutral_values_of_foreign_keys_pass(tmp_path):
    own = {"sample_from_anchor": False, "use_aux_hidden_state": True, "something_new": None}
    resolve(tmp_path, {"num_experts": 0, "partial_rotary_factor": 1.0, "auto_map": {"AutoModel": "x.y"}}, own)


@pytest.mark.parametrize(
    "top",
    [
        {"rope_theta": 500.0},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 500.0}},
        {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500}},
        {"rope_theta": None, "rope_scaling": {"type": "default", "rope_theta": 500.0}},
    ],
)
def test_rope_base_from_either_place(tmp_path, top):
    rope = resolve(tmp_path, top).rope
    assert (rope.kind, rope.theta) == ("default", 500.0)


SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 256, "beta_fast": 16.0},
}


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("legacy", [False, True])
def test_rope_scaling_is_transformers_own(tmp_path, kind, legacy):
    """Rotated vectors equal those of Transformers' Qwen3 rotary module, at positions short and long."""
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

    settings_of = {"rope_type": kind, **SCALINGS[kind]}
    top = (
        {"rope_scaling": settings_of}
        if legacy
        else {"rope_theta": None, "rope_parameters": {"rope_theta": 1e4, **settings_of}}
    )
    rope = resolve(tmp_path, {"max_position_embeddings": 1024, **top}).rope
    reference = Qwen3RotaryEmbedding(
        Qwen3Config(
            head_dim=16, max_position_embeddings=1024, rope_parameters={"rope_theta": 1e4, **settings_of}
        )
    )
    x = torch.randn(5, 2, 16, generator=torch.Generator().manual_seed(0))
    table = RotaryTable(rope, torch.float32, torch.device("cpu"))
    for start in (0, 777, 1500):
        cos, sin = reference(x, torch.arange(start, start + 5)[None])
        want = apply_rotary_pos_emb(x[None], x[None], cos, sin, unsqueeze_dim=2)[0][0]
        torch.testing.assert_close(
            rotate(x, *table.at(torch.arange(start, start + 5), start + 5)), want, atol=1e-5, rtol=0
        )


def test_growing_the_rotary_table_changes_no_entry():
    settings_of = RopeSettings("default", 1e4, (), 16, 4096)
    grown, fresh = (RotaryTable(settings_of, torch.float32, torch.device("cpu")) for _ in range(2))
    near, far = torch.arange(3, 10), torch.arange(5000, 5003)
    before = [table.clone() for table in grown.at(near, 10)]
    grown.at(far, 5003)
    assert all(torch.equal(a, b) for a, b in zip(before, grown.at(near, 10), strict=True))
    assert torch.equal(fresh.at(far, 5003)[0], grown.at(far, 5003)[0])


def test_default_frequencies():
    frequencies, factor = inverse_frequencies(RopeSettings("default", 100.0, (), 4, 4096))
    assert factor == 1.0
    torch.testing.assert_close(frequencies, torch.tensor([1.0, 0.1]))
