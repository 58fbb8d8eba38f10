"""Tensors of a checkpoint, one at a time: the numbers that safetensors itself reads, and refusals of damaged files."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftproof.errors import ModelError
from draftproof.models.fused.weights import CheckpointTensors
from support.tiny import make_model

TENSORS = {
    "a.weight": torch.randn(7, 5),
    "b.weight": torch.randn(33, 8).bfloat16(),
    "c.bias": torch.randn(3).half(),
    "d.scale": torch.tensor(2.5),
    "e.nothing": torch.empty(0, 4),
}


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_numbers_are_those_of_safetensors(tmp_path: Path) -> None:
    read = CheckpointTensors(saved(tmp_path, TENSORS), "mine")
    assert set(read) == set(TENSORS)
    assert len(read) == len(TENSORS)
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert read[name].dtype == tensor.dtype
        assert read.shape(name) == tuple(tensor.shape) == tuple(read[name].shape)
        assert torch.equal(read[name], tensor)
    assert read.nbytes == sum(t.numel() * t.element_size() for t in TENSORS.values())
    assert read.parameters == sum(t.numel() for t in TENSORS.values())
    assert read.plain


def test_shards(tmp_path: Path) -> None:
    model = make_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    read = CheckpointTensors(tmp_path, "mine")
    assert "lm_head.weight" not in read  # tied
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            assert torch.equal(read[name], tensor), name


def test_writing_does_not_reach_the_file(tmp_path: Path) -> None:
    read = CheckpointTensors(saved(tmp_path, TENSORS), "mine")
    read["a.weight"].zero_()
    assert torch.equal(read["a.weight"], TENSORS["a.weight"])


def resident() -> int:
    """Bytes of this process in memory that are mapped from files."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("RssFile"))


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="Linux tells how much memory is mapped")
def test_a_tensor_let_go_leaves_no_memory_behind(tmp_path: Path) -> None:
    many = {f"{n}.weight": torch.full((2048, 2048), float(n)) for n in range(12)}  # 16 MiB each
    read = CheckpointTensors(saved(tmp_path, many), "mine")
    del many
    gc.collect()
    before = resident()
    for name in read:
        assert float(read[name].sum()) == float(name.split(".")[0]) * 2048 * 2048
        assert resident() - before < 24 << 20
    held = read["3.weight"]
    held.sum()
    assert resident() - before > 8 << 20


def test_stored_otherwise_is_seen_and_refused(tmp_path: Path) -> None:
    read = CheckpointTensors(saved(tmp_path, {**TENSORS, "q": torch.zeros(4, dtype=torch.int8)}), "mine")
    assert not read.plain
    with pytest.raises(ModelError, match="mine: q is stored as I8") as caught:
        read["q"]
    assert caught.value.code == "DP250"
    with pytest.raises(KeyError):
        read["r"]


def test_no_safetensors_is_an_empty_mapping(tmp_path: Path) -> None:
    assert not CheckpointTensors(tmp_path, "mine")


@pytest.mark.parametrize("keep", [0.5, 0.01, 0.0])
def test_cut_short(tmp_path: Path, keep: float) -> None:
    file = saved(tmp_path, TENSORS) / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(ModelError, match="cannot load mine") as caught:
        CheckpointTensors(tmp_path, "mine")
    assert caught.value.code == "DP250"


def test_a_header_that_contradicts_itself(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 32]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(32))
    with pytest.raises(ModelError, match="a is cut short or damaged"):
        CheckpointTensors(tmp_path, "mine")


def test_a_missing_shard(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path, max_shard_size="100KB")
    sorted(tmp_path.glob("*.safetensors"))[1].unlink()
    with pytest.raises(ModelError) as caught:
        CheckpointTensors(tmp_path, "mine")
    assert caught.value.code == "DP250"
