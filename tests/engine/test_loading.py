"""What `load` does on machines that are not row-invariant, and what `lossless` makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftproof.engine.loading import check_lossless, load
from draftproof.errors import DraftproofWarning, ModelError, RequestError
from draftproof.models.executor import is_fused
from draftproof.models.fused import FusedTarget
from draftproof.models.linear import Route
from draftproof.models.target import Target, TargetOptions
from support.tiny import make_model
from support.tiny_tokenizers import tiny_tokenizer

OPTIONS = TargetOptions(dtype="float32", device="cpu", executor="transformers")
AUTO = TargetOptions(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tokenizer = tiny_tokenizer("byte_level")
    make_model("llama", vocab=len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def failing(
    monkeypatch: pytest.MonkeyPatch, routes: set[Route], only_compiled: bool = False
) -> list[tuple[Route, bool]]:
    """Machines whose self-test fails by these routes; what was tried is noted."""
    tried: list[tuple[Route, bool]] = []

    def self_test(target: Target) -> bool:
        tried.append((target.route, target.has_compiled_attention))
        return target.route not in routes or (only_compiled and not target.has_compiled_attention)

    monkeypatch.setattr(Target, "self_test", self_test)
    return tried


def test_a_sound_machine_keeps_the_fast_way(folder: Path) -> None:
    loaded = load(folder, "tiny", OPTIONS, "strict")
    assert loaded.row_invariant
    assert (loaded.target.route, loaded.target.has_compiled_attention) == (Route.PACKED, True)


def test_plain_attention_comes_before_tiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = failing(monkeypatch, {Route.PACKED}, only_compiled=True)
    loaded = load(folder, "tiny", OPTIONS, "strict")
    assert loaded.row_invariant
    assert tried == [(Route.PACKED, True), (Route.PACKED, False)]
    assert not loaded.target.has_compiled_attention


def test_tiles_where_packing_is_not_row_invariant(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, {Route.PACKED})
    loaded = load(folder, "tiny", OPTIONS, "strict")
    assert loaded.row_invariant
    assert loaded.target.route is Route.TILES


def test_nothing_helps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, set(Route))
    with pytest.warns(DraftproofWarning, match="lossless in distribution only"):
        assert not load(folder, "tiny", OPTIONS, "auto").row_invariant
    with pytest.raises(ModelError) as caught:
        load(folder, "tiny", OPTIONS, "strict")
    assert caught.value.code == "DP264"


def test_the_fused_executor_comes_first(folder: Path) -> None:
    loaded = load(folder, "tiny", AUTO, "strict")
    assert loaded.row_invariant
    assert is_fused(loaded.target)
    other = load(folder, "tiny", OPTIONS, "strict")
    assert (loaded.end_token_ids, loaded.defaults) == (other.end_token_ids, other.defaults)


def test_transformers_where_the_fused_executor_is_not_row_invariant(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FusedTarget, "self_test", lambda target: False)
    loaded = load(folder, "tiny", AUTO, "strict")
    assert loaded.row_invariant
    assert isinstance(loaded.target, Target)
    assert loaded.target.route is Route.PACKED
    failing(monkeypatch, {Route.PACKED})
    loaded = load(folder, "tiny", AUTO, "strict")
    assert isinstance(loaded.target, Target)
    assert loaded.target.route is Route.TILES


@pytest.mark.parametrize("changes", [{"executor": "fused"}, {"dtype": "int8"}])
def test_what_was_asked_for_is_not_exchanged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    monkeypatch.setattr(FusedTarget, "self_test", lambda target: False)
    with pytest.warns(DraftproofWarning, match="lossless in distribution only"):
        loaded = load(folder, "tiny", replace(AUTO, **changes), "auto")
    assert is_fused(loaded.target)
    with pytest.raises(ModelError) as caught:
        load(folder, "tiny", replace(AUTO, **changes), "strict")
    assert caught.value.code == "DP264"


@pytest.mark.parametrize("value", [True, "yes", "", None])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(RequestError) as caught:
        check_lossless(value)  # type: ignore[arg-type]
    assert caught.value.code == "DP450"
