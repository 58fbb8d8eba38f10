"""Checks of single sampling fields: each returns the value in its plain Python type or raises a coded error.

One function a field, so that a value from the user and one from a model's generation config meet one rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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


def _refuse(code: str, field: str, expected: str, value: object) -> NoReturn:
    raise RequestError(code, f"{field} must be {expected}, got {_shown(value)}")


def _shown(value: object) -> str:
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
    if value is None:
        return ()
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, bytearray, dict)):
        _refuse("DP427", "stop_token_ids", "a list of token ids", value)
    ids = []
    for index, item in enumerate(value):
        token_id = _as_int(item)
        if token_id is None or token_id < 0:
            _refuse("DP427", f"stop_token_ids[{index}]", "a token id (a whole number >= 0)", item)
        ids.append(token_id)
    return tuple(ids)


def check_switch(field: str, value: object) -> bool:
    """True or False and nothing else. Raises `RequestError` DP428."""
    if not isinstance(value, bool):
        _refuse("DP428", field, "True or False", value)
    return value
