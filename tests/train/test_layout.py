"""Drafters written to disk: what the inference side reads back, and what happens to what was there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from draftproof.errors import DrafterError, ModelError
from draftproof.models.drafters.checkpoint import read_checkpoint
from draftproof.models.drafters.config import LayerAttention
from draftproof.models.target import Target, TargetOptions
from draftproof.train import layout
from draftproof.train.initial import initial_tensors
from draftproof.train.layout import DrafterShape, even_taps, shape_for, write_drafter
from draftproof.train.target_weights import TargetWeights, read_target_weights
from support.tiny import make_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    make_model("llama").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def target(folder) -> TargetWeights:
    return read_target_weights(str(folder), 2)


@pytest.fixture
def shape(target) -> DrafterShape:
    return shape_for(target, num_layers=2, block_size=6, mask_token_id=3)


def test_what_is_written_loads_and_fits_the_target(tmp_path, folder, target, shape):
    tensors = initial_tensors(shape, target)
    where = write_drafter(tmp_path / "d", shape, tensors, files={"README.md": "A card.\n"})
    info = Target.load(folder, "t", TargetOptions(dtype="float32", device="cpu")).info
    read = read_checkpoint(where, info)
    assert replace(read.config, source="") == replace(shape.config(), source="")
    assert read.config.block_size == 6
    assert read.config.target_layer_ids == shape.taps
    assert read.config.mask_token_id == 3
    assert read.config.num_target_layers == 4
    assert read.config.rope.theta == 10000.0
    for name, tensor in read.tensors.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, tensors[name].bfloat16()), name
    assert (where / "README.md").read_text() == "A card.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]
    assert json.loads((where / "config.json").read_text())["dtype"] == "bfloat16"


def test_others_may_read_what_is_written(tmp_path, target, shape):
    where = write_drafter(tmp_path / "d", shape, initial_tensors(shape, target))
    (tmp_path / "mine").write_text("")
    mode = (tmp_path / "mine").stat().st_mode
    assert {file.stat().st_mode for file in where.iterdir()} == {mode}


def test_all_that_a_shape_says_comes_back(shape):
    rope = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
    said = replace(
        shape, window=9, embedding_scale=8.0, softcap=3.0, attention_bias=True, rope=rope, hidden_act="relu"
    )
    read = said.config()
    assert read.layers == (LayerAttention(9, False),) * 2
    assert (read.embedding_scale, read.softcap, read.attention_bias, read.hidden_act) == (
        8.0,
        3.0,
        True,
        "relu",
    )
    assert (read.rope.kind, read.rope.theta, read.rope.scaling) == ("linear", 5000.0, (("factor", 2.0),))
    assert shape.config().layers == (LayerAttention(None, False),) * 2


def test_a_drafter_is_replaced_as_a_whole(tmp_path, target, shape):
    first = write_drafter(tmp_path / "d", shape, initial_tensors(shape, target), files={"old.txt": "old"})
    write_drafter(tmp_path / "d", shape, initial_tensors(shape, target, seed=1), torch.float32)
    assert sorted(path.name for path in first.iterdir()) == ["config.json", "model.safetensors"]
    assert load_file(first / "model.safetensors")["fc.weight"].dtype == torch.float32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]


@pytest.mark.parametrize("moment", ["save_file", "rename"])
def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch, target, shape, moment):
    write_drafter(tmp_path / "d", shape, initial_tensors(shape, target))
    before = (tmp_path / "d" / "model.safetensors").read_bytes()

    def broken(*args, **kwargs):
        raise OSError(28, "No space left on device")

    if moment == "save_file":
        monkeypatch.setattr(layout, "save_file", broken)
    else:
        real = layout.os.replace

        def second_fails(source, destination):
            if Path(destination) == tmp_path / "d" and Path(source).name != "was":
                broken()
            real(source, destination)

        monkeypatch.setattr(layout.os, "replace", second_fails)
    with pytest.raises(DrafterError) as error:
        write_drafter(tmp_path / "d", shape, initial_tensors(shape, target, seed=1))
    assert error.value.code == "DP514"
    assert (tmp_path / "d" / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]


@pytest.mark.parametrize("content", ["a file", "a project", "a target"])
def test_what_is_no_drafter_is_left_alone(tmp_path, target, shape, content):
    where = tmp_path / "d"
    if content == "a file":
        where.write_text("mine")
    else:
        where.mkdir()
        name, text = (
            ("notes.txt", "mine")
            if content == "a project"
            else ("config.json", '{"architectures": ["Llama"]}')
        )
        (where / name).write_text(text)
    with pytest.raises(DrafterError) as error:
        write_drafter(where, shape, initial_tensors(shape, target))
    assert error.value.code == "DP514"
    assert where.read_text() == "mine" if where.is_file() else len(list(where.iterdir())) == 1


def test_tensors_that_do_not_fit_are_not_written(tmp_path, target, shape):
    tensors = initial_tensors(shape, target)
    del tensors["norm.weight"]
    with pytest.raises(DrafterError) as error:
        write_drafter(tmp_path / "d", shape, tensors)
    assert error.value.code == "DP305"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 0},
        {"block_size": 1},
        {"taps": ()},
        {"taps": (0, 4)},
        {"taps": (-1, 2)},
        {"taps": (2, 2)},
        {"mask_token_id": 10**6},
        {"mask_token_id": -1},
    ],
)
def test_shapes_that_cannot_be(target, options):
    with pytest.raises(DrafterError) as error:
        shape_for(target, **{"mask_token_id": 3, **options})
    assert error.value.code == "DP511"


@settings(deadline=None, derandomize=True)
@given(depth=st.integers(1, 100), count=st.integers(1, 9))
def test_even_taps_are_layers_of_the_target(depth, count):
    taps = even_taps(depth, count)
    assert taps
    assert list(taps) == sorted(set(taps))
    assert all(0 <= tap < depth for tap in taps)
    assert len(taps) <= max(count, 3)


def test_even_taps_of_published_depths():
    assert even_taps(30) == (1, 8, 14, 20, 27)
    assert even_taps(36) == (1, 9, 17, 25, 33)
    assert even_taps(4) == (2,)


@pytest.mark.parametrize(
    "kind", ["llama", "llama-odd", "qwen2", "qwen3", "gemma3", "phi3", "qwen2-moe", "gpt-oss"]
)
def test_targets_of_many_kinds_are_read(tmp_path, kind):
    """Whatever the target cannot give is made up; what it gives is what its checkpoint holds."""
    model = make_model(kind)
    model.save_pretrained(tmp_path / "t")
    target = read_target_weights(str(tmp_path / "t"), 2)
    assert torch.equal(target.embedding, model.get_input_embeddings().weight)
    assert torch.equal(target.lm_head, model.get_output_embeddings().weight)
    assert len(target.layers) == 2
    shape = shape_for(target, num_layers=3, block_size=4, mask_token_id=3)
    tensors = initial_tensors(shape, target)
    write_drafter(tmp_path / "d", shape, tensors)
    if kind in ("llama", "qwen3"):
        last = model.model.layers[-1]
        assert torch.equal(tensors["layers.2.mlp.up_proj.weight"], last.mlp.up_proj.weight)
    if kind == "gemma3":
        assert target.embedding_scale == 8.0
        assert target.rope["rope_theta"] == model.config.rope_parameters["full_attention"]["rope_theta"]


def test_the_two_ways_of_reading_agree(tmp_path, monkeypatch):
    """Through the compiled executor's reader and through Transformers' own code."""
    from draftproof.train import target_weights

    for kind in ("llama-odd", "llama-yarn", "qwen3", "gemma3"):
        make_model(kind).save_pretrained(tmp_path / kind)
        fast = read_target_weights(str(tmp_path / kind), 2)
        with monkeypatch.context() as patch:
            patch.setattr(target_weights, "find_source", lambda *_: "not wanted here")
            slow = read_target_weights(str(tmp_path / kind), 2)
        for field in (
            "num_heads",
            "head_dim",
            "rope",
            "rms_norm_eps",
            "hidden_act",
            "score_scale",
            "embedding_scale",
        ):
            assert getattr(fast, field) == getattr(slow, field), (kind, field)
        assert torch.equal(fast.final_norm, slow.final_norm)
        for one, other in zip(fast.layers, slow.layers, strict=True):
            shared = one.keys() & other.keys()
            assert {"self_attn.q_proj.weight", "input_layernorm.weight"} <= shared
            for name in shared - ({"post_attention_layernorm.weight"} if kind == "gemma3" else set()):
                assert torch.equal(one[name], other[name]), (kind, name)


def test_a_head_with_a_bias_cannot_be_borrowed(tmp_path):
    make_model("phimoe").save_pretrained(tmp_path)
    with pytest.raises(ModelError) as error:
        read_target_weights(str(tmp_path), 2)
    assert error.value.code == "DP510"
