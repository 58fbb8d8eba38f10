"""Reading what the user typed, and checking folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from draftproof.errors import ModelError
from draftproof.models.registry import KNOWN_MODELS, SilentProgress, check_model_folder, resolve_model

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    save_file({"a": torch.zeros(3, 5), "b": torch.ones(7)}, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def sharded(whole: Path) -> Path:
    (whole / "model.safetensors").unlink()
    for name, key in zip(SHARDS, "ab", strict=True):
        save_file({key: torch.zeros(4)}, whole / name)
    index = {"weight_map": dict(zip("ab", SHARDS, strict=True))}
    (whole / "model.safetensors.index.json").write_text(json.dumps(index))
    return whole


def code_of(spec: str | Path) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_model(str(spec), offline=True, progress=SilentProgress())
    assert "\n" not in caught.value.message
    return caught.value.code


def test_a_whole_folder_is_taken_as_it_is(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve_model(str(whole))
    assert (resolved.path, resolved.name, resolved.kind) == (whole, str(whole), "folder")
    monkeypatch.chdir(whole.parent)
    assert resolve_model("my-model").path == whole
    assert resolve_model("./my-model/").path == whole
    assert not resolve_model("my-model").trust_remote_code
    assert resolve_model("my-model", trust_remote_code=True).trust_remote_code


def test_shards_are_followed(sharded: Path) -> None:
    assert resolve_model(str(sharded)).path == sharded


def test_near_misses_are_suggested() -> None:
    with pytest.raises(
        ModelError, match=r"unknown model 'smolm2-135'.*Did you mean smollm2-135m\?"
    ) as caught:
        resolve_model("smolm2-135")
    assert caught.value.code == "DP200"
    with pytest.raises(ModelError, match="Known names: smollm2-135m") as caught:
        resolve_model("zebra")
    assert "mean" not in caught.value.message


@pytest.mark.parametrize("spec", ["", " ", "a\0b", "two words", "x" * 5000, "a:b"])
def test_odd_text_is_an_unknown_model(spec: str) -> None:
    assert code_of(spec) == "DP200"


@pytest.mark.parametrize("spec", ["./gone", "../gone", "/gone/away", "~/gone-away", "a/b/c", "gone/"])
def test_a_path_to_nothing(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert code_of(spec) == "DP201"


def test_a_file_in_place_of_a_folder(whole: Path) -> None:
    assert code_of(whole / "model.safetensors") == "DP201"


@pytest.mark.parametrize("content", [None, "{", "[]", "\xff"])
def test_a_config_that_is_none(whole: Path, content: str | None) -> None:
    (whole / "config.json").unlink()
    if content is not None:
        (whole / "config.json").write_text(content, encoding="latin-1")
    assert code_of(whole) == "DP202"


def test_no_weights(whole: Path) -> None:
    (whole / "model.safetensors").rename(whole / "weights.safetensors")
    with pytest.raises(ModelError, match=r"found weights\.safetensors, but no index") as caught:
        check_model_folder(whole)
    assert caught.value.code == "DP203"


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / SHARDS[1]).unlink()
    with pytest.raises(ModelError, match=f"1 of 2 shards .* missing: {SHARDS[1]}") as caught:
        check_model_folder(sharded)
    assert caught.value.code == "DP203"


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}', "[]"])
def test_an_index_that_is_none(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    assert code_of(sharded) == "DP204"


def test_a_truncated_shard(sharded: Path) -> None:
    content = (sharded / SHARDS[0]).read_bytes()
    (sharded / SHARDS[0]).write_bytes(content[:-1])
    with pytest.raises(ModelError, match=f"expected {len(content)} bytes, got {len(content) - 1}") as caught:
        resolve_model(str(sharded))
    assert caught.value.code == "DP204"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_cut_of_a_safetensors_file_passes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    (folder / "config.json").write_text("{}")
    save_file({"a": torch.zeros(3, 5)}, folder / "model.safetensors")
    content = (folder / "model.safetensors").read_bytes()
    check_model_folder(folder)
    keep = data.draw(st.integers(0, len(content) - 1))
    (folder / "model.safetensors").write_bytes(content[:keep])
    with pytest.raises(ModelError) as caught:
        check_model_folder(folder)
    assert caught.value.code == "DP204"


@pytest.mark.parametrize("text", ["version https://git-lfs\noid sha256:0\nsize 269060552\n", "", "x" * 100])
def test_a_pointer_in_place_of_weights(whole: Path, text: str) -> None:
    (whole / "model.safetensors").write_text(text)
    assert code_of(whole) == "DP204"


def test_pickled_weights_are_checked_too(whole: Path) -> None:
    (whole / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(100)}, whole / "pytorch_model.bin")
    check_model_folder(whole)
    content = (whole / "pytorch_model.bin").read_bytes()
    (whole / "pytorch_model.bin").write_bytes(content[: len(content) // 2])
    assert code_of(whole) == "DP204"


def test_a_hub_model_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="pass the path of a folder") as caught:
        resolve_model("nobody/nothing-of-this-name", offline=True, progress=SilentProgress())
    assert caught.value.code == "DP205"


def test_a_hub_that_does_not_answer() -> None:
    """In a process of its own: the hub client reads its address when it is imported."""
    import os
    import subprocess
    import sys

    script = (
        "from draftproof.errors import ModelError\n"
        "from draftproof.models.registry import resolve_model\n"
        "try:\n    resolve_model('nobody/nothing-of-this-name')\n"
        "except ModelError as error:\n    print(error.code, error.message)\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("DP205 "), done.stdout
    assert "go online once" in done.stdout


def test_the_table_is_sound() -> None:
    names = [entry.name for entry in KNOWN_MODELS]
    assert len(set(names)) == len(names)
    for entry in KNOWN_MODELS:
        assert entry.name == entry.name.lower()
        assert len(entry.source.sha256) == 64
        assert entry.disk_bytes > 2 * entry.source.size
