"""Everything that does not fit is refused at load, with a code, and the message says what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from drafter_support import DEPTH, HIDDEN, VOCAB, tiny_checkpoint, tiny_target
from safetensors.torch import load_file, save_file

from draftproof.errors import DrafterError, explanation
from draftproof.models.drafters import load_drafter
from draftproof.models.drafters.vocabulary import FILE


@pytest.fixture
def folder(tmp_path):
    return tiny_checkpoint(tmp_path / "drafter", block_size=6)


def refused(folder, code, *words, target=None, **options):
    """Loading fails with `code`, and every one of `words` is in the message."""
    with pytest.raises(DrafterError) as caught:
        load_drafter(folder, target or tiny_target().info, **options)
    assert caught.value.code == code, caught.value.message
    assert explanation(code).title
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message


def edit(folder, top=None, own=None, drop=(), drop_own=()):
    config = json.loads((folder / "config.json").read_text())
    config.update(top or {})
    config["dflash_config"].update(own or {})
    for name in drop:
        config.pop(name, None)
    for name in drop_own:
        config["dflash_config"].pop(name, None)
    (folder / "config.json").write_text(json.dumps(config))


def edit_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# Where it is


def test_no_such_folder(tmp_path):
    refused(tmp_path / "nowhere", "DP301", "nowhere", "ngram")


def test_a_file_in_place_of_the_folder(folder):
    refused(folder / "model.safetensors", "DP301", "not a folder")


def test_no_config(folder):
    (folder / "config.json").unlink()
    refused(folder, "DP301", "config.json")


# The config


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\x00\x01"])
def test_config_is_no_json_object(folder, text):
    (folder / "config.json").write_text(text)
    refused(folder, "DP302", "config.json")


@pytest.mark.parametrize(
    "name",
    [
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "vocab_size", "block_size"),
    ],
)
@pytest.mark.parametrize("value", [None, "12", 0, -1, 2.5, True])
def test_sizes_must_be_whole_numbers(folder, name, value):
    edit(folder, {name: value})
    refused(folder, "DP302", name, repr(value))


@pytest.mark.parametrize(
    ("top", "own", "words"),
    [
        ({"num_key_value_heads": 3}, {}, ["num_attention_heads 4", "3"]),
        ({"head_dim": 15}, {}, ["head_dim", "15"]),
        ({"rms_norm_eps": "small"}, {}, ["rms_norm_eps", "small"]),
        ({"attention_bias": "yes"}, {}, ["attention_bias", "yes"]),
        ({"layer_types": ["full_attention"]}, {}, ["layer_types", "2 layers"]),
        ({}, {"target_layer_ids": []}, ["target_layer_ids"]),
        ({}, {"target_layer_ids": [1, "4"]}, ["target_layer_ids"]),
        ({}, {"target_layer_ids": 4}, ["target_layer_ids"]),
        ({}, {"use_swa": True}, ["use_swa", "window"]),
        ({}, {"swa_window_size": 0}, ["swa_window_size", "0"]),
        ({}, {"causal": 1}, ["causal", "1"]),
        ({}, {"final_logit_softcapping": 0.0}, ["final_logit_softcapping"]),
        ({}, {"attention_value_scale": float("nan")}, ["attention_value_scale"]),
        ({}, {"block_size": 1}, ["block_size", "at least 2"]),
        ({"dflash_config": [1]}, None, ["dflash_config"]),
        ({"rope_theta": -1.0}, {}, ["rope_theta"]),
        ({"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}}, {}, ["rope_theta", "1.0", "2.0"]),
        ({"rope_scaling": {"rope_type": "linear"}}, {}, ["linear", "factor"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, {}, ["llama3", "low_freq_factor"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": "two"}}, {}, ["factor", "two"]),
    ],
)
def test_config_does_not_make_sense(folder, top, own, words):
    edit(folder, None, own)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **top}))
    refused(folder, "DP302", *words)


def test_default_taps_need_a_deep_enough_target(folder):
    edit(folder, drop=["num_target_layers"], drop_own=["target_layer_ids"])
    refused(folder, "DP302", "at least 4", "got 3", target=tiny_target(depth=3).info)


@pytest.mark.parametrize(
    "dflash2_field", ["conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"]
)
def test_dflash2_needs_its_fields(tmp_path, dflash2_field):
    folder = tiny_checkpoint(tmp_path / "drafter", dflash2=True)
    edit(folder, drop_own=[dflash2_field])
    refused(folder, "DP302", dflash2_field)


def test_conv_group_must_divide(tmp_path):
    folder = tiny_checkpoint(tmp_path / "drafter", dflash2=True)
    edit(folder, own={"conv_group_size": 7})
    refused(folder, "DP302", "conv_group_size 7", str(HIDDEN))


@pytest.mark.parametrize(
    ("top", "own", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, {}, ["LlamaForCausalLM", "DFlashDraftModel"]),
        ({"architectures": ["EagleModel", "Other"]}, {}, ["EagleModel"]),
        ({"architectures": []}, {}, ["nothing"]),
        ({"architectures": None}, {}, ["nothing"]),
        ({"model_type": "gemma3"}, {}, ["gemma3"]),
        ({"hidden_act": "mish"}, {}, ["hidden_act", "mish", "silu"]),
        ({"quantization_config": {"quant_method": "fp8"}}, {}, ["quantization_config"]),
        ({"draft_vocab_size": 10}, {}, ["draft_vocab_size"]),
        ({"num_experts": 8}, {}, ["num_experts", "8"]),
        ({"mlp_bias": True}, {}, ["mlp_bias"]),
        ({"partial_rotary_factor": 0.5}, {}, ["partial_rotary_factor"]),
        ({"layer_types": ["full_attention", "linear_attention"]}, {}, ["linear_attention"]),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, {}, ["dynamic", "yarn"]),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, {}, ["longrope"]),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": 3}}, {}, ["mrope_section"]),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, {}, ["part of each head"]),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, {}, ["layer type"]),
        ({}, {"sample_from_anchor": True}, ["sample_from_anchor"]),
        ({}, {"projector_type": "dspark"}, ["projector_type", "dspark"]),
        ({}, {"markov_rank": 4}, ["markov_rank"]),
    ],
)
def test_unsupported_is_refused(folder, top, own, words):
    edit(folder, {"rope_theta": 1e4, **top}, own)
    refused(folder, "DP303", *words)


def test_trained_mask_embedding_is_refused(folder):
    torch.save({"embedding": torch.zeros(HIDDEN)}, folder / "mask_embedding.pt")
    refused(folder, "DP303", "mask_embedding.pt")


def test_no_mask_token(folder):
    edit(folder, drop_own=["mask_token_id"])
    refused(folder, "DP313", "mask_token_id")


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 2.0}])
def test_no_rope_base(folder, scaling):
    edit(folder, {"rope_scaling": scaling}, drop=["rope_theta"])
    refused(folder, "DP314", "rope_theta")


# The weight files


def test_no_weights(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "DP304", "pytorch_model.bin")


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_truncated_weights(folder, keep):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    refused(folder, "DP304", "truncated or corrupt")


def test_corrupt_header(folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[8:40] = b"\xff" * 32
    path.write_bytes(content)
    refused(folder, "DP304", "model.safetensors")


def shard(folder):
    """Split the checkpoint into two files and an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in files.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    index = {"weight_map": {name: file for file, own in files.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_sharded_checkpoints_load(folder):
    whole = load_drafter(folder, tiny_target().info)
    shard(folder)
    assert torch.equal(load_drafter(folder, tiny_target().info)._norm, whole._norm)


def test_missing_shard(folder):
    shard(folder)
    (folder / "b.safetensors").unlink()
    refused(folder, "DP304", "b.safetensors", "not there")


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_broken_index(folder, text):
    shard(folder)
    (folder / "model.safetensors.index.json").write_text(text)
    refused(folder, "DP304", "index")


# The tensors


def names_of(**options):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as scratch:
        return sorted(load_file(tiny_checkpoint(Path(scratch) / "d", **options) / "model.safetensors"))


FULLEST = {
    "dflash2": True,
    "num_layers": 1,
    "top": {"attention_bias": True},
    "dflash_config": {"attention_sink_bias": True},
}


@pytest.mark.parametrize("name", names_of(**FULLEST))
def test_every_weight_is_missed(tmp_path, name):
    folder = tiny_checkpoint(tmp_path / "drafter", **FULLEST)
    edit_weights(folder, lambda tensors: tensors.pop(name))
    refused(folder, "DP305", name)


@pytest.mark.parametrize("name", names_of(**FULLEST))
def test_every_shape_is_checked(tmp_path, name):
    folder = tiny_checkpoint(tmp_path / "drafter", **FULLEST)

    def lengthen(tensors):
        tensors[name] = torch.cat((tensors[name], tensors[name][:1]))

    edit_weights(folder, lengthen)
    refused(folder, "DP307", name, "shape")


@pytest.mark.parametrize("name", names_of(**FULLEST))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_every_weight_must_be_finite(tmp_path, name, bad):
    folder = tiny_checkpoint(tmp_path / "drafter", **FULLEST)
    edit_weights(folder, lambda tensors: tensors[name].view(-1)[-1:].fill_(bad))
    refused(folder, "DP308", name)


@pytest.mark.parametrize(
    "name",
    ["layers.2.input_layernorm.weight", "layers.0.self_attn.q_proj.bias", "teacher.weight", "mask_embedding"],
)
def test_unexpected_weights(folder, name):
    edit_weights(folder, lambda tensors: tensors.update({name: torch.zeros(HIDDEN)}))
    refused(folder, "DP306", name)


def test_sinks_without_the_flag(tmp_path):
    folder = tiny_checkpoint(tmp_path / "drafter", dflash_config={"attention_sink_bias": True})
    edit(folder, own={"attention_sink_bias": False})
    refused(folder, "DP306", "attention_sink_bias")


def test_quantised_tensors(folder):
    edit_weights(folder, lambda tensors: tensors.update({"fc.weight": tensors["fc.weight"].to(torch.int8)}))
    refused(folder, "DP303", "fc.weight", "int8")


def test_names_with_a_common_prefix_load(folder):
    def prefix(tensors):
        for name in list(tensors):
            tensors[f"model.{name}"] = tensors.pop(name)

    edit_weights(folder, prefix)
    load_drafter(folder, tiny_target().info)


def test_names_with_a_prefix_here_and_there(folder):
    edit_weights(folder, lambda tensors: tensors.update({"model.fc.weight": tensors.pop("fc.weight")}))
    refused(folder, "DP306", "model.fc.weight")


@pytest.mark.parametrize("suffixed", [True, False])
def test_codebooks_with_and_without_suffix(tmp_path, suffixed):
    folder = tiny_checkpoint(tmp_path / "drafter", dflash2=True)
    name = "candidate_selector.predecessor_codebook"

    def rename(tensors):
        tensors[name] = tensors.pop(f"{name}.weight")

    if not suffixed:
        edit_weights(folder, rename)
    load_drafter(folder, tiny_target().info)


def test_codebook_given_twice(tmp_path):
    folder = tiny_checkpoint(tmp_path / "drafter", dflash2=True)
    name = "candidate_selector.successor_codebook"
    edit_weights(folder, lambda tensors: tensors.update({name: tensors[f"{name}.weight"].clone()}))
    refused(folder, "DP306", name)


# The target


@pytest.mark.parametrize("taps", [(1, 4, DEPTH), (-1, 4, 8)])
def test_taps_out_of_range(tmp_path, taps):
    folder = tiny_checkpoint(tmp_path / "drafter", target_layer_ids=taps)
    refused(folder, "DP309", str([t for t in taps if not 0 <= t < DEPTH]), f"0 to {DEPTH - 1}")


def test_target_of_another_depth(folder):
    refused(folder, "DP310", str(DEPTH), "11", target=tiny_target(depth=11).info)


def test_depth_is_not_checked_where_the_file_is_silent(folder):
    edit(folder, drop=["num_target_layers"])
    load_drafter(folder, tiny_target(depth=11).info)


def test_target_of_another_width(folder):
    refused(folder, "DP311", str(HIDDEN), "48", target=tiny_target(hidden=48).info)


def test_number_of_taps_disagrees_with_fc(folder):
    edit(folder, own={"target_layer_ids": [1, 4]})
    refused(folder, "DP311", "fc.weight", str(3 * HIDDEN), str(2 * HIDDEN))


def test_own_embedding_and_head_allow_another_width(folder):
    """The features are still the target's, so `fc` must take its width."""

    def add(tensors):
        tensors["embed_tokens.weight"], tensors["lm_head.weight"] = (
            torch.ones(VOCAB, HIDDEN),
            torch.ones(VOCAB, HIDDEN),
        )

    edit_weights(folder, add)
    wide = tiny_target(hidden=48)
    refused(folder, "DP311", "fc.weight", str(3 * 48), target=wide.info)
    edit_weights(folder, lambda tensors: tensors.update({"fc.weight": torch.ones(HIDDEN, 3 * 48)}))
    load_drafter(folder, wide.info)
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    refused(folder, "DP311", "LM head", target=wide.info)


def test_target_of_another_vocabulary(folder):
    refused(folder, "DP312", str(VOCAB), "62", target=tiny_target(vocab=62).info)


def test_mask_token_outside_the_vocabulary(folder):
    edit(folder, own={"mask_token_id": VOCAB})
    refused(folder, "DP313", str(VOCAB), f"0 to {VOCAB - 1}")


def test_negative_mask_token(folder):
    edit(folder, own={"mask_token_id": -1})
    refused(folder, "DP302", "mask_token_id")


# The block size


@pytest.mark.parametrize("size", [-1, 0, 1])
@pytest.mark.parametrize("ngram", [True, False])
def test_block_size_too_small(folder, size, ngram):
    refused("ngram" if ngram else folder, "DP315", str(size), "at least 2", block_size=size)


def test_block_size_beyond_the_trained_one(folder):
    refused(folder, "DP315", "7", "6", block_size=7)


@pytest.mark.parametrize("size", [None, 2, 6])
def test_block_sizes_that_work(folder, size):
    assert load_drafter(folder, tiny_target().info, block_size=size).max_draft_tokens == (size or 6) - 1


def test_ngram_takes_any_block_size():
    info = replace(tiny_target().info)
    assert load_drafter("ngram", info).max_draft_tokens == 7
    assert load_drafter("ngram", info, block_size=40).max_draft_tokens == 39


# The tokens it proposes


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "JSONDecodeError"),
        ("[1, 2]", "TypeError"),
        ('{"tokens": [1]}', "KeyError"),
        ('{"token_ids": []}', "at least one"),
        ('{"token_ids": 5}', "at least one"),
        ('{"token_ids": [1, "2"]}', "whole numbers"),
        ('{"token_ids": [1, true]}', "whole numbers"),
        ('{"token_ids": [2, 1]}', "ascend"),
        ('{"token_ids": [1, 1]}', "ascend"),
        ('{"token_ids": [-1, 1]}', "ascend"),
        (f'{{"token_ids": [1, {VOCAB}]}}', "ascend"),
        ("\xff", "UnicodeDecodeError"),
    ],
)
@pytest.mark.parametrize("executor", ["auto", "torch"])
def test_a_list_of_draft_tokens_that_is_none(folder, text, word, executor):
    (folder / FILE).write_bytes(text.encode("latin-1"))
    refused(folder, "DP319", FILE, word, executor=executor)
