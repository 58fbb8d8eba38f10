"""SamplingParams: every field's rule, and what an open field resolves to."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof.errors import ALL, DraftproofWarning, RequestError, explanation
from draftproof.sampling import SamplingDefaults, SamplingParams, StructuredOutputs

NEUTRAL = SamplingDefaults()
SAMPLING = SamplingDefaults(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05)
NAN, INF = float("nan"), float("inf")

BAD = [
    (
        "temperature",
        "DP420",
        [-0.5, -1e-300, NAN, INF, -INF, 1.1e6, 10**400, True, "0.8", [0.8], np.bool_(1)],
    ),
    ("top_p", "DP421", [0, 0.0, -0.1, 1.0000001, 95, NAN, INF, True, "0.9"]),
    ("top_k", "DP422", [-2, 0.5, 20.0, True, "20", NAN, [20]]),
    ("min_p", "DP423", [-0.01, 1.01, NAN, INF, False, "0", 5]),
    ("seed", "DP424", [2**63, -(2**63) - 1, 1.0, True, "1", NAN, 10**5000]),
    ("max_tokens", "DP425", [0, -1, 1.5, None, True, "5", INF]),
    ("stop", "DP426", ["", [""], ["a", ""], [1], b"a", [b"a"], 3, {"a"}, [None], ["a", ["b"]]]),
    ("stop_token_ids", "DP427", [[-1], [1.0], ["a"], "12", 5, [True], [None], {1: 2}]),
    ("ignore_eos", "DP428", [None, 0, 1, "false"]),
    ("include_stop_str_in_output", "DP428", [None, 0, 1, "false"]),
    ("skip_special_tokens", "DP428", [None, 0, 1, "false"]),
    ("repetition_penalty", "DP433", [0, -1, 1e-7, 1e7, NAN, INF, True, "1.1"]),
    ("presence_penalty", "DP434", [-2.01, 2.01, NAN, INF, None, True, "0"]),
    ("frequency_penalty", "DP434", [-2.01, 2.01, NAN, INF, None, True, "0"]),
    ("logit_bias", "DP435", [5, "5", [5], [1, 2], {1: 100.5}, {1: -101}, {1: NAN}, {1: "2"}, {1: True}]),
    ("allowed_token_ids", "DP436", [[], [-1], [1.0], ["a"], "12", 5, [True], {1: 2}]),
    ("banned_token_ids", "DP436", [[-1], [1.0], ["a"], "12", 5, [True], {1: 2}]),
    ("min_tokens", "DP437", [-1, 257, 1.5, True, "5", INF]),
    ("n", "DP438", [0, -1, 16_385, 1.5, None, True, "2"]),
    ("logprobs", "DP439", [-2, 1.5, True, False, "5"]),
    ("prompt_logprobs", "DP439", [-2, 1.5, True, False, "5"]),
    ("structured_outputs", "DP444", [{"regex": "a"}, "json", True]),
]


@pytest.mark.parametrize(("field", "code", "values"), BAD, ids=[field for field, _, _ in BAD])
def test_bad_values_are_refused_with_the_fields_own_code(field: str, code: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(RequestError) as caught:
            SamplingParams(**{field: value})
        assert caught.value.code == code
        assert caught.value.message.startswith(field)
        assert " must be " in caught.value.message
        assert ", got " in caught.value.message
        assert "\n" not in caught.value.message
        assert isinstance(caught.value, ValueError)


def test_messages_say_what_came() -> None:
    with pytest.raises(
        RequestError, match=r"^temperature must be a number from 0 \(greedy\) to 1000000, got -0.5$"
    ):
        SamplingParams(temperature=-0.5)
    with pytest.raises(
        RequestError, match=r"^stop\[1\] must be a string with at least one character, got ''$"
    ):
        SamplingParams(stop=["a", ""])
    with pytest.raises(RequestError, match=r"^stop_token_ids\[0\] must be a token id .*, got -3$"):
        SamplingParams(stop_token_ids=[-3])


def test_a_huge_value_does_not_flood_the_message() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(temperature="x" * 10_000)  # type: ignore[arg-type]
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 0.0, -0.0, 1, 1e-9, 1e6, np.float32(0.5), Fraction(1, 4)]),
        ("top_p", [1, 1.0, 1e-300, np.float64(0.5)]),
        ("top_k", [-1, 0, 1, 10**9, np.int64(5)]),
        ("min_p", [0, 1, 0.05]),
        ("seed", [0, -1, -(2**63), 2**63 - 1, np.int64(7)]),
        ("max_tokens", [1, 10**9, np.int32(4)]),
        ("stop", [None, [], "a", "\n\n", ["a", "b"], ("a",)]),
        ("stop_token_ids", [None, [], [0], (1, 2), np.array([1, 2]), {3}]),
        ("repetition_penalty", [1, 1e-6, 1e6, np.float32(1.5), Fraction(5, 4)]),
        ("presence_penalty", [-2, 0, 2, 0.5]),
        ("frequency_penalty", [-2, 0, 2, 0.5]),
        ("allowed_token_ids", [[0], (1, 2), np.array([1, 2]), {3}]),
        ("banned_token_ids", [[], [0], (1, 2), np.array([1, 2]), {3}]),
        ("min_tokens", [0, 256, np.int64(5)]),
        ("n", [1, 16_384]),
        ("logprobs", [-1, 0, 20, np.int64(3)]),
        ("prompt_logprobs", [-1, 0, 20]),
    ],
)
def test_good_values_are_taken_and_stored_in_plain_types(field: str, values: list[Any]) -> None:
    for value in values:
        params = SamplingParams(**{field: value})
        stored = getattr(params, field)
        if field in ("stop", "stop_token_ids", "allowed_token_ids", "banned_token_ids"):
            assert type(stored) is tuple
            assert all(type(item) in (str, int) for item in stored)
        else:
            assert type(stored) in (int, float)
            assert stored == value
        hash(params)


def test_equal_requests_are_equal_however_they_were_spelt() -> None:
    assert SamplingParams(stop="a", stop_token_ids=[1]) == SamplingParams(stop=["a"], stop_token_ids=(1,))
    assert pickle.loads(pickle.dumps(SamplingParams(stop="a"))) == SamplingParams(stop="a")


def test_params_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().temperature = 1.0  # type: ignore[misc]


def test_open_fields_take_the_models_defaults_and_set_ones_win() -> None:
    resolved = SamplingParams().resolve(SAMPLING)
    assert (resolved.temperature, resolved.top_p, resolved.top_k, resolved.min_p) == (0.7, 0.9, 20, 0.05)
    assert not resolved.is_greedy
    own = SamplingParams(temperature=1.5, top_p=1.0, top_k=-1, min_p=0).resolve(SAMPLING)
    assert (own.temperature, own.top_p, own.top_k, own.min_p) == (1.5, 1.0, 0, 0.0)


def test_without_defaults_it_is_greedy() -> None:
    resolved = SamplingParams().resolve(NEUTRAL)
    assert resolved.is_greedy
    assert (resolved.temperature, resolved.top_p, resolved.top_k, resolved.min_p) == (0.0, 1.0, 0, 0.0)
    assert resolved.max_tokens == 256
    assert resolved.stop == ()
    assert resolved.stop_token_ids == frozenset()
    assert resolved.skip_special_tokens
    assert not resolved.ignore_eos
    assert not resolved.include_stop_str_in_output


def test_stops_and_switches_are_carried_over() -> None:
    params = SamplingParams(
        max_tokens=3,
        stop=["b", "a"],
        stop_token_ids=[5, 5, 2],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    resolved = params.resolve(NEUTRAL)
    assert resolved.max_tokens == 3
    assert resolved.stop == ("b", "a")
    assert resolved.stop_token_ids == {2, 5}
    assert resolved.ignore_eos
    assert resolved.include_stop_str_in_output
    assert not resolved.skip_special_tokens


def test_a_greedy_request_drops_the_models_cuts_silently(recwarn: pytest.WarningsRecorder) -> None:
    resolved = SamplingParams(temperature=0, top_k=5).resolve(SAMPLING)
    assert (resolved.temperature, resolved.top_p, resolved.top_k, resolved.min_p) == (0.0, 1.0, 0, 0.0)
    assert not recwarn.list


def test_cuts_without_a_temperature_on_a_greedy_model_warn() -> None:
    with pytest.warns(DraftproofWarning, match="top_p, min_p set without a temperature"):
        SamplingParams(top_p=0.9, min_p=0.1).resolve(NEUTRAL)


@pytest.mark.parametrize("temperature", [0, -0.0, 1e-300, 5e-324, 9.9e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    resolved = SamplingParams(temperature=temperature).resolve(NEUTRAL)
    assert resolved.is_greedy
    assert math.copysign(1, resolved.temperature) == 1


@given(st.floats(1e-5, 1e6), st.floats(min_value=1e-320, max_value=1.0))
def test_what_is_resolved_never_breaks_the_arithmetic_downstream(temperature: float, top_p: float) -> None:
    resolved = SamplingParams(temperature=temperature, top_p=top_p).resolve(NEUTRAL)
    assert resolved.temperature == temperature
    logits = torch.tensor([3.4e38, -3.4e38, 0.0, -INF], dtype=torch.float32)
    scaled = logits.double() / resolved.temperature
    assert not scaled.isnan().any()
    assert scaled[:3].isfinite().all()
    ordinary = torch.tensor([1e4, -1e4, -INF], dtype=torch.float32) / torch.tensor(resolved.temperature)
    assert not ordinary.isnan().any()
    assert ordinary[:2].isfinite().all()
    assert 0 < float(torch.tensor(resolved.top_p, dtype=torch.float32)) <= 1


def test_a_seed_is_kept_and_a_missing_one_is_drawn() -> None:
    for seed in (0, 7, -5, 2**63 - 1, -(2**63)):
        assert SamplingParams(seed=seed).resolve(NEUTRAL).seed == seed
    for params in (SamplingParams(), SamplingParams(seed=-1)):
        drawn = [params.resolve(NEUTRAL).seed for _ in range(64)]
        assert len(set(drawn)) == 64
        assert all(0 <= seed < 2**63 for seed in drawn)
        assert max(drawn) >= 2**57  # 64 draws all this small: under 2**-384
        torch.tensor(drawn)  # fits int64


def test_stop_token_ids_are_checked_against_the_vocabulary() -> None:
    SamplingParams(stop_token_ids=[99]).resolve(NEUTRAL, vocab_size=100)
    with pytest.raises(RequestError, match="below the vocabulary size 100, got 100") as caught:
        SamplingParams(stop_token_ids=[2, 100]).resolve(NEUTRAL, vocab_size=100)
    assert caught.value.code == "DP427"


@pytest.mark.parametrize(
    "bias", [{7: 1, 3: -2.5}, {"7": 1, "3": -2.5}, {np.int64(7): 1, "3": np.float32(-2.5)}]
)
def test_a_logit_bias_takes_ids_and_their_digits(bias: dict[Any, Any]) -> None:
    params = SamplingParams(logit_bias=bias)
    assert params.logit_bias == ((3, -2.5), (7, 1.0))
    assert replace(params, n=2).logit_bias == params.logit_bias
    assert params.resolve(NEUTRAL).logit_bias == params.logit_bias


@pytest.mark.parametrize(
    "bias", [{-1: 1}, {"-1": 1}, {1.0: 1}, {"a": 1}, {"": 1}, {True: 1}, {"²": 1}, {1: 0, "1": 0}]
)
def test_a_logit_bias_refuses_other_keys(bias: dict[Any, Any]) -> None:
    with pytest.raises(RequestError, match=r"logit_bias must be .*, got ") as caught:
        SamplingParams(logit_bias=bias)
    assert caught.value.code == "DP435"


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(RequestError, match="allowed_token_ids must have a token that banned") as caught:
        SamplingParams(allowed_token_ids=[5, 7, 7], banned_token_ids=[7, 5, 9])
    assert caught.value.code == "DP436"
    with pytest.raises(RequestError, match=r"min_tokens must be .* max_tokens \(8\), got 9") as caught:
        SamplingParams(min_tokens=9, max_tokens=8)
    assert caught.value.code == "DP437"
    with pytest.raises(RequestError, match="banned_token_ids must leave a token") as caught:
        SamplingParams(banned_token_ids=range(10)).resolve(NEUTRAL, vocab_size=10)
    assert caught.value.code == "DP436"


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("logit_bias", {100: 1}, "DP435"),
        ("allowed_token_ids", [1, 100], "DP436"),
        ("banned_token_ids", [1, 100], "DP436"),
        ("logprobs", 101, "DP439"),
        ("prompt_logprobs", 101, "DP439"),
    ],
)
def test_ids_and_counts_are_checked_against_the_vocabulary(field: str, value: Any, code: str) -> None:
    params = SamplingParams(**{field: value})
    params.resolve(NEUTRAL, vocab_size=101)
    with pytest.raises(RequestError, match=f"{field} must be .*vocabulary size 100, got") as caught:
        params.resolve(NEUTRAL, vocab_size=100)
    assert caught.value.code == code


def test_row_rules_are_carried_over_to_greedy_decoding() -> None:
    form = StructuredOutputs(regex="a+")
    resolved = SamplingParams(
        temperature=0,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={1: 2},
        allowed_token_ids=[1, 2, 2],
        banned_token_ids=[2],
        min_tokens=3,
        n=4,
        logprobs=-1,
        prompt_logprobs=0,
        structured_outputs=form,
    ).resolve(NEUTRAL, vocab_size=50)
    assert (resolved.repetition_penalty, resolved.presence_penalty, resolved.frequency_penalty) == (
        1.2,
        0.5,
        -0.5,
    )
    assert resolved.logit_bias == ((1, 2.0),)
    assert (resolved.allowed_token_ids, resolved.banned_token_ids) == ({1, 2}, {2})
    assert (resolved.min_tokens, resolved.n) == (3, 4)
    assert (resolved.logprobs, resolved.prompt_logprobs) == (50, 0)
    assert resolved.structured_outputs is form


REQUEST_CODES = [entry.code for entry in ALL if entry.code.startswith("DP4")]


@pytest.mark.parametrize(
    "code",
    [
        code
        for code in REQUEST_CODES
        if "DP420" <= code < "DP430" or "DP433" <= code < "DP440" or code in ("DP444", "DP445")
    ],
)
def test_the_example_of_each_explanation_fails_as_told_and_its_mend_works(code: str) -> None:
    entry = explanation(code)
    names = {
        "SamplingParams": SamplingParams,
        "SamplingDefaults": SamplingDefaults,
        "StructuredOutputs": StructuredOutputs,
    }
    with pytest.raises(RequestError) as caught:
        eval(entry.before, names)
    assert caught.value.code == code
    eval(entry.after, names)


def test_no_code_is_missing_and_every_explanation_is_whole() -> None:
    assert {f"DP40{n}" for n in range(1, 7)} | {f"DP4{n}" for n in range(20, 30)} <= set(REQUEST_CODES)
    for code in REQUEST_CODES:
        entry = explanation(code)
        assert entry.triggers
        assert all((entry.title, entry.meaning, entry.fix, entry.before, entry.after, entry.prevention))
