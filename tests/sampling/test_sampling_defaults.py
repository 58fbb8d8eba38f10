"""What a model's generation config says about sampling."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
from transformers import GenerationConfig

from draftproof.errors import DraftproofWarning, RequestError
from draftproof.sampling import SamplingDefaults, SamplingParams


def quiet(config: dict[str, Any] | None) -> SamplingDefaults:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return SamplingDefaults.from_generation_config(config)


@pytest.mark.parametrize("config", [None, {}, {"eos_token_id": 2}, {"do_sample": False, "temperature": 0.9}])
def test_no_do_sample_is_greedy(config: dict[str, Any] | None) -> None:
    assert quiet(config) == SamplingDefaults(temperature=0.0)


def test_do_sample_gives_the_configs_values() -> None:
    config = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1}
    assert quiet(config) == SamplingDefaults(0.6, 0.95, 20, 0.1)
    assert quiet({"do_sample": True}) == SamplingDefaults(temperature=1.0)


def test_cuts_wait_for_a_temperature() -> None:
    assert quiet({"top_p": 0.8, "top_k": None}) == SamplingDefaults(temperature=0.0, top_p=0.8)


def test_transformers_own_config_is_neutral() -> None:
    assert quiet(GenerationConfig().to_dict()) == SamplingDefaults()
    config = GenerationConfig(do_sample=True, temperature=0.5, repetition_penalty=1.0, max_new_tokens=20)
    assert quiet(config.to_dict()) == SamplingDefaults(temperature=0.5)


def test_row_rules_of_the_config_apply_to_greedy_decoding_too() -> None:
    defaults = quiet({"repetition_penalty": 1.1, "suppress_tokens": [3, 999], "min_new_tokens": 9})
    assert defaults == SamplingDefaults(
        repetition_penalty=1.1, banned_token_ids=frozenset({3, 999}), min_tokens=9
    )
    open_fields = SamplingParams(max_tokens=5).resolve(defaults, vocab_size=100)
    assert open_fields.repetition_penalty == 1.1
    assert open_fields.banned_token_ids == {3}  # 999 is not in the vocabulary, and could not come anyway
    assert open_fields.min_tokens == 5
    own = SamplingParams(repetition_penalty=1, banned_token_ids=[], min_tokens=0).resolve(defaults)
    assert (own.repetition_penalty, own.banned_token_ids, own.min_tokens) == (1.0, frozenset(), 0)


def test_the_models_bans_must_leave_what_the_user_allows() -> None:
    defaults = SamplingDefaults(banned_token_ids=frozenset({3}))
    with pytest.raises(RequestError, match="allowed_token_ids must have a token") as caught:
        SamplingParams(allowed_token_ids=[3]).resolve(defaults)
    assert caught.value.code == "DP436"


def test_what_is_not_applied_is_named_once() -> None:
    config = {"top_h": 0.5, "no_repeat_ngram_size": 3, "typical_p": 1.0, "bad_words_ids": None}
    with pytest.warns(DraftproofWarning) as caught:
        SamplingDefaults.from_generation_config(config)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "no_repeat_ngram_size=3, top_h=0.5:" in message
    assert "typical_p" not in message
    assert "bad_words_ids" not in message
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "fault",
    [
        {"temperature": "0.7"},
        {"temperature": -1},
        {"top_p": 0},
        {"top_k": 1.5},
        {"min_p": float("nan")},
        {"repetition_penalty": 0},
        {"suppress_tokens": 5},
        {"min_new_tokens": -1},
    ],
)
def test_an_unusable_value_is_refused(fault: dict[str, Any]) -> None:
    with pytest.raises(
        RequestError, match=f"generation_config.json: {re.escape(next(iter(fault)))} must be"
    ) as caught:
        SamplingDefaults.from_generation_config({"do_sample": True, **fault})
    assert caught.value.code == "DP429"
