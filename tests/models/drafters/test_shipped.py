"""``drafter="default"``: the drafter that comes with the package, found by the target's name."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from draftproof import SamplingParams
from draftproof.cli.generate import drafter_source
from draftproof.engine import loading
from draftproof.engine.loading import find_drafter
from draftproof.errors import DrafterError
from draftproof.models.drafters import shipped, write_random_checkpoint
from draftproof.models.drafters.shipped import FOLDER, SHIPPED, ShippedDrafter, default_drafter, has_default
from draftproof.models.drafters.vocabulary import read_vocabulary
from draftproof.models.registry import KNOWN_MODELS
from support.llms import tiny_llm

TABLE = (ShippedDrafter("llama", "tiny-llama"),)


@pytest.fixture
def own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with a stand-in drafter for the tiny target, whose name is ``llama``."""
    info = tiny_llm().target.info
    write_random_checkpoint(
        tmp_path / "tiny-llama",
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        num_target_layers=info.num_layers,
        target_layer_ids=(0, 2),
        block_size=6,
    )
    monkeypatch.setattr(loading, "default_drafter", lambda target: default_drafter(target, TABLE, tmp_path))
    return tmp_path


def test_the_targets_name_finds_it(own_table: Path) -> None:
    llm = tiny_llm().with_drafter("default", draft_mode="fixed=5")
    assert llm.drafter is not None
    assert (llm.drafter.name, llm.drafter.max_draft_tokens) == ("dflash", 5)
    result = llm.generate("Hello", SamplingParams(temperature=0.0, max_tokens=8), progress=False)[0]
    assert result.stats.drafted_tokens > 0
    assert find_drafter("default", " LLAMA ") == own_table / "tiny-llama"


def test_a_block_size_goes_along(own_table: Path) -> None:
    llm = tiny_llm().with_drafter("default", block_size=3, draft_mode="fixed=2")
    assert llm.drafter is not None
    assert llm.drafter.max_draft_tokens == 2


def test_another_target_has_none(own_table: Path) -> None:
    with pytest.raises(DrafterError, match=r"'qwen3'; there is one for llama") as caught:
        tiny_llm("qwen3").with_drafter("default")
    assert caught.value.code == "DP548"


@pytest.mark.parametrize(
    ("target", "there"),
    [
        ("smollm2-135m", True),
        (" SmolLM2-135M", True),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("models/SmolLM2-135M-Instruct/", True),
        (r"C:\models\SmolLM2-135M-Instruct-Q8_0.gguf", True),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", True),
        ("SmolLM2-135M-Instruct.gguf", True),
        ("HuggingFaceTB/SmolLM2-135M", False),
        ("HuggingFaceTB/SmolLM2-360M-Instruct", False),
        ("me/SmolLM2-135M-Instruct-mine", False),
        ("smollm2-135m-instruct/other", False),
        ("", False),
        ("/", False),
    ],
)
def test_the_published_name_finds_it_too(target: str, there: bool) -> None:
    if there:
        assert default_drafter(target) == default_drafter("smollm2-135m")
        return
    with pytest.raises(DrafterError) as caught:
        default_drafter(target)
    assert caught.value.code == "DP548"


def test_without_being_asked_for_it_serves_no_name_that_may_be_another_models() -> None:
    assert all(map(has_default, ["smollm2-135m", "SmolLM2-135M ", "HuggingFaceTB/SmolLM2-135M-Instruct"]))
    assert not any(map(has_default, ["", "models/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.gguf"]))


@pytest.mark.parametrize("gone", ["config.json", "model.safetensors"])
def test_a_file_that_is_gone_is_said(own_table: Path, gone: str) -> None:
    (own_table / "tiny-llama" / gone).unlink()
    with pytest.raises(DrafterError, match=f"lacks {gone}") as caught:
        tiny_llm().with_drafter("default")
    assert caught.value.code == "DP549"


def test_a_folder_of_that_name_is_reached_by_its_path(
    own_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_table / "default").mkdir()
    monkeypatch.chdir(own_table)
    assert find_drafter("default", "llama") == own_table / "tiny-llama"
    assert find_drafter("./default", "llama") == "./default"


def test_the_table_names_known_models_and_folders_that_are_packaged() -> None:
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    known = {model.name for model in KNOWN_MODELS}
    assert {entry.target for entry in SHIPPED} <= known
    project = Path(shipped.__file__).parents[4]
    with (project / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["setuptools"]["package-data"]["draftproof"]
    for entry in SHIPPED:
        for name in ("config.json", "model.safetensors", "README.md"):
            path = (FOLDER / entry.folder / name).relative_to(FOLDER.parent).as_posix()
            assert any(fnmatch(path, pattern) for pattern in patterns), path


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.target)
def test_what_is_shipped_is_whole_and_small(entry: ShippedDrafter) -> None:
    folder = default_drafter(entry.target)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 30 * 2**20
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        assert {tensors.get_tensor(name).dtype for name in tensors.keys()} == {torch.bfloat16}  # noqa: SIM118
    vocabulary = read_vocabulary(folder, config["vocab_size"])
    assert vocabulary is not None
    assert 1_000 < len(vocabulary) < config["vocab_size"] // 2
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"base_model: {entry.target}" in card


def test_auto_takes_it_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTPROOF_DRAFTER", raising=False)
    assert drafter_source("auto", "SmolLM2-135M ") == "default"
    assert drafter_source("auto", "owner/another") == "ngram"
    assert drafter_source("none", "smollm2-135m") is None
    monkeypatch.setenv("DRAFTPROOF_DRAFTER", "some/folder")
    assert drafter_source("auto", "smollm2-135m") == "some/folder"
    assert drafter_source("ngram", "smollm2-135m") == "ngram"


def test_a_name_that_is_none_is_a_drafters_error() -> None:
    with pytest.raises(DrafterError, match="no drafter 'ngrma': it is neither 'ngram', 'default'") as caught:
        find_drafter("ngrma", "llama")
    assert caught.value.code == "DP301"
