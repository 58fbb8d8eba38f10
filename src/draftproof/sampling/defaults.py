"""Sampling defaults that a model brings along in its `generation_config.json`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from draftproof.errors import DraftproofWarning, RequestError
from draftproof.sampling import fields

# What this version does not apply, with the value at which it would change nothing (None always is one).
# Length fields (max_length, max_new_tokens) are missing on purpose: `SamplingParams.max_tokens` is the limit.
_NOT_APPLIED: Mapping[str, object] = {
    "encoder_repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": [],
    "sequence_bias": {},
    "begin_suppress_tokens": [],
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "min_length": 0,
    "exponential_decay_length_penalty": None,
    "typical_p": 1,
    "top_h": None,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "penalty_alpha": 0,
    "guidance_scale": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "dola_layers": None,
    "watermarking_config": None,
    "stop_strings": [],
    "token_healing": False,
}


@dataclass(frozen=True)
class SamplingDefaults:
    """What a sampling field means when the user leaves it out. As it stands: greedy, nothing cut off.

    Attributes:
        temperature: 0 for greedy.
        top_p: in ``(0, 1]``.
        top_k: 0 or -1 for all tokens.
        min_p: in ``[0, 1]``.
        repetition_penalty: 1 for none.
        banned_token_ids: the config's `suppress_tokens`.
        min_tokens: the config's `min_new_tokens`; a request with a lower `max_tokens` takes that.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    banned_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0

    @classmethod
    def from_generation_config(cls, config: Mapping[str, object] | None) -> SamplingDefaults:
        """Defaults from the content of a `generation_config.json` (or `GenerationConfig.to_dict()`).

        `do_sample` false or absent gives temperature 0, as Transformers' `generate` does; true gives the
        config's temperature, 1.0 when it names none. `top_p`, `top_k` and `min_p` are taken either way, so
        they apply once the user sets a temperature; `repetition_penalty`, `suppress_tokens` and `min_new_tokens` apply to
        greedy decoding too, as they do there. Fields absent or None are neutral: no hidden top_k of 50.

        Raises:
            RequestError: DP429, a field holds a value that cannot be used.

        Warns:
            DraftproofWarning: once, naming every field that would change the output and is not applied.
        """
        if not config:
            return cls()
        temperature = _field(config, "temperature", fields.check_temperature, 1.0)
        defaults = cls(
            temperature=temperature if config.get("do_sample") else 0.0,
            top_p=_field(config, "top_p", fields.check_top_p, cls.top_p),
            top_k=_field(config, "top_k", fields.check_top_k, cls.top_k),
            min_p=_field(config, "min_p", fields.check_min_p, cls.min_p),
            repetition_penalty=_field(
                config, "repetition_penalty", fields.check_repetition_penalty, cls.repetition_penalty
            ),
            banned_token_ids=_field(config, "suppress_tokens", _suppressed, cls.banned_token_ids),
            min_tokens=_field(config, "min_new_tokens", fields.check_min_new_tokens, cls.min_tokens),
        )
        _warn_of_fields_not_applied(config)
        return defaults


T = TypeVar("T")


def _field(config: Mapping[str, object], name: str, check: Callable[[object], T], neutral: T) -> T:
    value = config.get(name)
    if value is None:
        return neutral
    try:
        return check(value)
    except RequestError as error:
        raise RequestError("DP429", f"the model's generation_config.json: {error.message}") from error


def _suppressed(value: object) -> frozenset[int]:
    return frozenset(fields.check_suppress_tokens(value))


def _warn_of_fields_not_applied(config: Mapping[str, object]) -> None:
    found = [
        f"{name}={config[name]!r}"
        for name, neutral in _NOT_APPLIED.items()
        if config.get(name) is not None and config[name] != neutral
    ]
    if found:
        warnings.warn(
            "the model's generation_config.json asks for "
            + ", ".join(found)
            + ": not applied by this version, "
            "so the output may differ from that of an engine that applies them",
            DraftproofWarning,
            stacklevel=3,
        )
