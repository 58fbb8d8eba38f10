"""Checks of single sampling fields: each returns the value in its plain Python type or raises a coded error.

One function a field, so that a value from the user and one from a model's generation config meet one rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import NoReturn

from draftproof.errors import RequestError

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy decoding, as in vLLM; every temperature from here on is used exactly."""

MAX_TEMPERATURE = 1e6
"""Beyond this the distribution is uniform to within rounding, and float32 code would near ``-inf / inf``."""

MIN_TOP_P = 1e-8
"""A smaller top_p keeps one token just the same (the likeliest one has at least 1/vocab of the mass), but
would be 0 in float32."""

SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1

REPETITION_PENALTY_SPAN = (1e-6, 1e6)
"""Within it a logit of ordinary size stays finite in float32, multiplied or divided."""

MAX_N = 16_384
"""Most choices of one request, as in vLLM: beyond it a slip of the keyboard would fill the queue."""

ALL_TOKENS = -1
"""`logprobs=-1`: of the whole vocabulary."""


def _refuse(code: str, field: str, expected: str, value: object) -> NoReturn:
    raise RequestError(code, f"{field} must be {expected}, got {shown(value)}")


def shown(value: object) -> str:
    """The value as a message shows it: never long."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python will print
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _as_int(value: object) -> int | None:
    """The whole number, or None. A bool is an int in Python, but `top_k=True` is a slip."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def _as_float(value: object) -> float | None:
    """The finite number, or None."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond the largest float
        return None
    return number if math.isfinite(number) else None


def check_temperature(value: object) -> float:
    """A finite number in ``[0, 1e6]``; 0 is greedy. Raises `RequestError` DP420."""
    number = _as_float(value)
    if number is None or not 0 <= number <= MAX_TEMPERATURE:
        _refuse("DP420", "temperature", f"a number from 0 (greedy) to {MAX_TEMPERATURE:.0f}", value)
    return number


def check_top_p(value: object) -> float:
    """A number in ``(0, 1]``; 1 is off. Raises `RequestError` DP421."""
    number = _as_float(value)
    if number is None or not 0 < number <= 1:
        _refuse("DP421", "top_p", "a number above 0 and at most 1 (1 = off)", value)
    return number


def check_top_k(value: object) -> int:
    """A whole number >= -1; 0 and -1 mean all tokens. Raises `RequestError` DP422."""
    number = _as_int(value)
    if number is None or number < -1:
        _refuse("DP422", "top_k", "a whole number >= 1, or 0 or -1 for all tokens", value)
    return number


def check_min_p(value: object) -> float:
    """A number in ``[0, 1]``; 0 is off. Raises `RequestError` DP423."""
    number = _as_float(value)
    if number is None or not 0 <= number <= 1:
        _refuse("DP423", "min_p", "a number from 0 (off) to 1", value)
    return number


def check_seed(value: object) -> int:
    """A whole number of 64 bits, signed. Raises `RequestError` DP424."""
    number = _as_int(value)
    if number is None or not SEED_MIN <= number <= SEED_MAX:
        _refuse("DP424", "seed", "a whole number from -2**63 to 2**63 - 1 (None or -1 draws one)", value)
    return number


def check_max_tokens(value: object) -> int:
    """A whole number >= 1. Raises `RequestError` DP425."""
    number = _as_int(value)
    if number is None or number < 1:
        _refuse("DP425", "max_tokens", "a whole number >= 1", value)
    return number


def check_stop(value: object) -> tuple[str, ...]:
    """A string, a sequence of strings, or None for none; none of them empty. Raises `RequestError` DP426."""
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or isinstance(strings, (bytes, bytearray)):
        _refuse("DP426", "stop", "a string or a list of strings", value)
    for index, string in enumerate(strings):
        if not isinstance(string, str):
            _refuse("DP426", f"stop[{index}]", "a string", string)
        if not string:
            _refuse("DP426", f"stop[{index}]", "a string with at least one character", string)
    return tuple(strings)


def check_token_ids(value: object) -> tuple[int, ...]:
    """Token ids >= 0 in any iterable but a string, or None for none. Raises `RequestError` DP427."""
    return _token_ids("DP427", "stop_token_ids", value) if value is not None else ()


def _token_ids(code: str, field: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, bytearray, dict)):
        _refuse(code, field, "a list of token ids", value)
    ids = []
    for index, item in enumerate(value):
        token_id = _as_int(item)
        if token_id is None or token_id < 0:
            _refuse(code, f"{field}[{index}]", "a token id (a whole number >= 0)", item)
        ids.append(token_id)
    return tuple(ids)


def check_switch(field: str, value: object) -> bool:
    """True or False and nothing else. Raises `RequestError` DP428."""
    if not isinstance(value, bool):
        _refuse("DP428", field, "True or False", value)
    return value


def check_repetition_penalty(value: object) -> float:
    """A number above 0, from 1e-6 to 1e6; 1 is off. Raises `RequestError` DP433."""
    number = _as_float(value)
    low, high = REPETITION_PENALTY_SPAN
    if number is None or not low <= number <= high:
        _refuse("DP433", "repetition_penalty", "a number above 0 (1 = off; from 1e-6 to 1e6)", value)
    return number


def check_output_penalty(field: str, value: object) -> float:
    """`presence_penalty` or `frequency_penalty`: a number in ``[-2, 2]``; 0 is off. Raises `RequestError` DP434."""
    number = _as_float(value)
    if number is None or not -2 <= number <= 2:
        _refuse("DP434", field, "a number from -2 to 2 (0 = off)", value)
    return number


def check_logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """A mapping of token ids to numbers in ``[-100, 100]``, or None for none.

    Keys may be strings of digits, for JSON objects have no others. Returns pairs in order of id; such pairs are taken too.

    Raises:
        RequestError: DP435.
    """
    if value is None:
        return ()
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable) or isinstance(pairs, (str, bytes, bytearray)):
        _refuse("DP435", "logit_bias", "a dictionary of token id to number", value)
    biases: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            _refuse("DP435", "logit_bias", "a dictionary of token id to number", value)
        token_id = _bias_key(pair[0])
        if token_id in biases:
            _refuse("DP435", "logit_bias", f"without a token twice (here {token_id})", value)
        bias = _as_float(pair[1])
        if bias is None or not -100 <= bias <= 100:
            _refuse("DP435", f"logit_bias[{token_id}]", "a number from -100 to 100", pair[1])
        biases[token_id] = bias
    return tuple(sorted(biases.items()))


def _bias_key(key: object) -> int:
    digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 18
    token_id = int(key) if digits else _as_int(key)  # type: ignore[call-overload]
    if token_id is None or token_id < 0:
        _refuse("DP435", "a key of logit_bias", "a token id (a whole number >= 0)", key)
    return int(token_id)


def check_allowed_token_ids(value: object) -> tuple[int, ...]:
    """At least one token id. Raises `RequestError` DP436."""
    ids = _token_ids("DP436", "allowed_token_ids", value)
    if not ids:
        _refuse("DP436", "allowed_token_ids", "at least one token id (None allows all)", value)
    return ids


def check_banned_token_ids(value: object) -> tuple[int, ...]:
    """Any number of token ids. Raises `RequestError` DP436."""
    return _token_ids("DP436", "banned_token_ids", value)


def check_some_token_left(
    allowed: Iterable[int] | None, banned: Iterable[int] | None, vocab_size: int | None
) -> None:
    """That some token is allowed and not banned. Raises `RequestError` DP436."""
    banned = frozenset(banned or ())
    if allowed is not None and banned.issuperset(allowed):
        raise RequestError(
            "DP436",
            "allowed_token_ids must have a token that banned_token_ids has not, got "
            f"allowed {shown(sorted(set(allowed)))}, banned {shown(sorted(banned))}",
        )
    if vocab_size is not None and len(banned) >= vocab_size:
        raise RequestError(
            "DP436", f"banned_token_ids must leave a token, got all {vocab_size} of the vocabulary"
        )


def check_in_vocabulary(code: str, field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """That every id is below the vocabulary size. Raises `RequestError` of the given code."""
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise RequestError(
                code, f"{field} must be below the vocabulary size {vocab_size}, got {token_id}"
            )


def check_min_tokens(value: object, max_tokens: int) -> int:
    """A whole number from 0 to `max_tokens`. Raises `RequestError` DP437."""
    number = _as_int(value)
    if number is None or not 0 <= number <= max_tokens:
        _refuse("DP437", "min_tokens", f"a whole number from 0 to max_tokens ({max_tokens})", value)
    return number


def check_min_new_tokens(value: object) -> int:
    """`min_new_tokens` of a generation config: a whole number >= 0. Raises `RequestError` DP437."""
    number = _as_int(value)
    if number is None or number < 0:
        _refuse("DP437", "min_new_tokens", "a whole number >= 0", value)
    return number


def check_suppress_tokens(value: object) -> tuple[int, ...]:
    """`suppress_tokens` of a generation config: token ids. Raises `RequestError` DP436."""
    return _token_ids("DP436", "suppress_tokens", value)


def check_n(value: object) -> int:
    """A whole number from 1 to 16,384. Raises `RequestError` DP438."""
    number = _as_int(value)
    if number is None or not 1 <= number <= MAX_N:
        _refuse("DP438", "n", f"a whole number from 1 to {MAX_N}", value)
    return number


def check_logprobs(field: str, value: object) -> int:
    """`logprobs` or `prompt_logprobs`: a whole number >= 0, or -1 for the whole vocabulary. Raises `RequestError` DP439."""
    number = _as_int(value)
    if number is None or number < ALL_TOKENS:
        _refuse(
            "DP439",
            field,
            "a whole number >= 0, -1 for the whole vocabulary, or None for no log-probabilities",
            value,
        )
    return number


def count_of_logprobs(field: str, count: int | None, vocab_size: int | None) -> int | None:
    """How many of the likeliest tokens to report, -1 made the vocabulary size. Raises `RequestError` DP439."""
    if count is None or vocab_size is None:
        return count
    if count > vocab_size:
        _refuse("DP439", field, f"at most the vocabulary size {vocab_size}", count)
    return vocab_size if count == ALL_TOKENS else count


def check_draft_length(value: object) -> int | str:
    """``"auto"`` or a whole number >= 0. Raises `RequestError` DP690."""
    if isinstance(value, str) and value == "auto":
        return value
    number = _as_int(value)
    if number is None or number < 0:
        _refuse("DP690", "draft_length", 'a whole number >= 0 (0 = no drafts) or "auto"', value)
    return number


def check_prediction(value: object) -> str | tuple[int, ...]:
    """A text, or token ids. Raises `RequestError` DP691."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            _refuse("DP691", "prediction", "a text without halves of surrogate pairs", value)
        return value
    ids = (
        [_as_int(item) for item in value]
        if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping))
        else [None]
    )
    if any(number is None or number < 0 for number in ids):
        _refuse("DP691", "prediction", "a text or a list of token ids", value)
    return tuple(number for number in ids if number is not None)
