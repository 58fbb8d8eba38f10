"""Which executor a target gets, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftproof.errors import ModelError
from draftproof.models import executor, verdicts
from draftproof.models.executor import describe, is_fused, load_target, precision_of, without_fused
from draftproof.models.fused import FusedTarget, Precision
from draftproof.models.linear import Route
from draftproof.models.quality import Quality
from draftproof.models.rows import Segment
from draftproof.models.target import Target, TargetOptions
from support.fused import products_of_bfloat16
from support.tiny import make_model, random_tokens


def saved(folder: Path, kind: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    make_model(kind, dtype).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def options(**changes: Any) -> TargetOptions:
    return TargetOptions(**{"device": "cpu", **changes})


def refuse(path: Path, code: str, match: str, **changes: Any) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        load_target(path, "mine", options(**changes))
    assert caught.value.code == code


@pytest.mark.parametrize("kind", ["llama", "llama-odd", "qwen2", "qwen3", "mistral", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_executor_runs_what_it_covers(
    tmp_path: Path, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the checkpoint's own dtype, and close to the model's own code."""
    products_of_bfloat16(monkeypatch, True)
    path = saved(tmp_path, kind, dtype)
    target = load_target(path, "mine", options())
    assert is_fused(target)
    assert precision_of(target) == str(dtype).removeprefix("torch.")
    assert target.dtype == dtype
    own = load_target(path, "mine", options(executor="transformers", dtype="float32"))
    assert isinstance(own, Target)
    tokens = random_tokens(20)
    logits, expected = (
        each.forward([Segment(each.new_sequence(), tokens, 0)]).logits for each in (target, own)
    )
    allowed = 1e-3 if dtype == torch.float32 else 0.05
    assert float((logits.float() - expected).abs().max()) < allowed * float(expected.abs().max())


def test_auto_is_float32_where_products_of_bfloat16_are_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products_of_bfloat16(monkeypatch, False)
    path = saved(tmp_path, dtype=torch.bfloat16)
    assert precision_of(load_target(path, "mine", options())) == "float32"
    assert precision_of(load_target(path, "mine", options(dtype="bfloat16"))) == "bfloat16"


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "olmoe"])
def test_others_run_on_transformers(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, kind)
    assert isinstance(load_target(path, "mine", options()), Target)
    refuse(
        path, "DP265", "mine: the fused executor cannot run it: it covers .*llama.*, not", executor="fused"
    )
    refuse(path, "DP266", "dtype 'int4' needs the fused executor", dtype="int4")


def test_pickled_weights_run_on_transformers(tmp_path: Path) -> None:
    path = saved(tmp_path)
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    assert isinstance(load_target(path, "mine", options()), Target)
    refuse(path, "DP265", "not in safetensors", executor="fused")


def test_asking_for_transformers(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert isinstance(load_target(path, "mine", options(executor="transformers")), Target)
    tiles = load_target(path, "mine", options(route=Route.TILES))
    assert isinstance(tiles, Target)
    assert tiles.route is Route.TILES
    refuse(path, "DP266", "Transformers executor was asked for", executor="transformers", dtype="int8")
    refuse(path, "DP265", "route 'tiles'", executor="fused", route=Route.TILES)
    with pytest.raises(ModelError) as caught:
        Target.load(path, "mine", options(dtype="int4"))
    assert caught.value.code == "DP266"


def test_without_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_numba_is_here", lambda: False)
    path = saved(tmp_path)
    assert isinstance(load_target(path, "mine", options()), Target)
    refuse(path, "DP265", "numba", executor="fused")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "int4"])
def test_every_precision_can_be_asked_for(tmp_path: Path, name: str) -> None:
    target = load_target(saved(tmp_path), "mine", options(dtype=name, executor="fused"))
    assert precision_of(target) == name
    assert target.self_test()
    assert describe(target).startswith(f"fused/{name}/")


def test_what_costs_are_kept_by_tells_precisions_and_executors_apart(tmp_path: Path) -> None:
    path = saved(tmp_path, dtype=torch.bfloat16)
    wanted = [options(dtype=name) for name in ("bfloat16", "int8", "int4", "float32")]
    wanted += [options(executor="transformers"), options(route=Route.TILES)]
    assert len({describe(load_target(path, "mine", each)) for each in wanted}) == len(wanted)


@pytest.mark.parametrize(
    "changes", [{"dtype": "fp8"}, {"dtype": ""}, {"dtype": None}, {"device": "nonsense"}]
)
def test_dtype_and_device(tmp_path: Path, changes: dict[str, Any]) -> None:
    refuse(saved(tmp_path), "DP259", "dtype|device", **changes)


def test_an_executor_that_does_not_exist(tmp_path: Path) -> None:
    refuse(saved(tmp_path), "DP267", "one of auto, fused, transformers, got 'numba'", executor="numba")


def test_weights_missing_or_misshapen(tmp_path: Path) -> None:
    path = saved(tmp_path)
    weights = load_file(path / "model.safetensors")
    name = "model.layers.2.mlp.up_proj.weight"
    save_file(
        {**weights, name: weights[name][:50].clone()}, path / "model.safetensors", metadata={"format": "pt"}
    )
    refuse(path, "DP250", r"model\.layers\.2\.mlp\.up_proj\.weight")
    del weights[name]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    refuse(path, "DP250", r"missing model\.layers\.2\.mlp\.up_proj\.weight")


def test_quantised(tmp_path: Path) -> None:
    refuse(
        saved(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4}),
        "DP260",
        "gptq",
        dtype="int4",
    )


def test_weights_that_no_integer_holds(tmp_path: Path) -> None:
    path = saved(tmp_path)
    weights = load_file(path / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 3] = torch.inf
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    refuse(path, "DP268", "cannot be stored as int8", dtype="int8")
    assert is_fused(load_target(path, "mine", options(dtype="bfloat16")))


def test_what_follows_a_failed_test() -> None:
    assert without_fused(options()) == options(executor="transformers")
    assert without_fused(options(dtype="bfloat16")) == options(dtype="bfloat16", executor="transformers")
    assert without_fused(options(executor="fused")) is None
    assert without_fused(options(dtype="int4")) is None


def test_auto_takes_the_precision_that_was_found_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verdicts, "SMALL", 0)
    products_of_bfloat16(monkeypatch, True)
    monkeypatch.setattr(verdicts, "fast", lambda precision: True)
    findings = {Precision.INT4: Quality(0.9, 0.0, 100), Precision.INT8: Quality(0.99, 0.001, 100)}
    asked: list[Precision] = []

    def measuring(source: Any) -> Any:
        return lambda precision: (asked.append(precision), findings[precision])[1]

    monkeypatch.setattr(verdicts, "_measuring", measuring)
    path = saved(tmp_path, dtype=torch.bfloat16)
    assert precision_of(load_target(path, "mine", options())) == "int8"
    assert asked == [Precision.INT4, Precision.INT8]
    assert precision_of(load_target(path, "mine", options())) == "int8"
    assert len(asked) == 2  # what was found is kept
    monkeypatch.setattr(verdicts, "fast", lambda precision: False)
    assert precision_of(load_target(path, "mine", options())) == "bfloat16"
    assert isinstance(load_target(path, "mine", options(dtype="int4")), FusedTarget)
