"""What a run can be told, and what it refuses to be told."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import pytest

from draftproof.errors import RequestError
from draftproof.train.settings import FREE, PRESETS, TrainSettings, differing, preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_run_once_it_has_an_end(name: str) -> None:
    assert preset(name, steps=10).steps == 10
    assert preset(name, time_limit=1.5).time_limit == 1.5
    with pytest.raises(RequestError, match="a run needs an end"):
        preset(name)


def test_a_preset_with_changes_keeps_the_rest() -> None:
    changed = preset("small", steps=10, num_layers=4, gamma=None)
    assert changed == replace(PRESETS["small"], steps=10, num_layers=4)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("num_layers", 0, "num_layers must be a whole number from 1, got 0"),
        ("block_size", 1, "block_size must be a whole number from 2"),
        ("batch", 2.5, "batch must be a whole number"),
        ("anchors", True, "anchors must be a whole number"),
        ("steps", 0, "steps must be a whole number from 1"),
        ("mask_token_id", -1, "mask_token_id must be a whole number from 0"),
        ("greedy_share", 1.1, "greedy_share must be a number from 0 to 1, got 1.1"),
        ("gamma", 0, "gamma must be a number from 0.001 up"),
        ("learning_rate", math.nan, "learning_rate must be a number"),
        ("warmup", 1.0, "warmup must be a number from 0 to 0.9"),
        ("time_limit", -1.0, "time_limit must be a number"),
        ("distill", -0.1, "distill must be a number from 0 to 1"),
        ("optimizer", "sgd", "optimizer must be one of adamw, muon, got 'sgd'"),
        ("precision", "float16", "precision must be one of auto, bfloat16, float32"),
        ("taps", (), "taps must be layer numbers"),
        ("taps", ("1",), "taps must be layer numbers"),
        ("micro_batch", 3, "batch must be a multiple of micro_batch, got 4 and 3"),
    ],
)
def test_what_makes_no_sense_is_refused(field: str, value: object, said: str) -> None:
    with pytest.raises(RequestError, match=said.replace(".", r"\.").replace("(", r"\(")) as refused:
        replace(TrainSettings(steps=5), **{field: value}).checked()
    assert refused.value.code == "DP520"


@pytest.mark.parametrize("bad", [{"name": "huge"}, {"name": "tiny", "layers": 3}])
def test_names_that_do_not_exist_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(RequestError) as refused:
        preset(**{"steps": 1, **bad})  # type: ignore[arg-type]
    assert refused.value.code == "DP520"


def test_a_recipe_holds_everything_but_what_may_change() -> None:
    settings = TrainSettings(steps=5, taps=(1, 2))
    recipe = settings.recipe()
    assert recipe.keys() | FREE == {field.name for field in fields(TrainSettings)}
    assert not recipe.keys() & FREE
    assert json.loads(json.dumps(recipe)) == recipe
    assert differing(recipe, replace(settings, steps=9, eval_minutes=1.0).recipe()) == []
    assert differing(recipe, replace(settings, gamma=3.0, seed=1).recipe()) == ["gamma", "seed"]
