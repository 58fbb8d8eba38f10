"""Every feature a request may use, as requests made to fit a model's own output, and what must be true of the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.engine import RequestResult
from draftproof.sampling import SamplingParams, StructuredOutputs, choice_seed

Check = Callable[[RequestResult], str | None]
"""What of the feature the answer fails to keep, in words; None when it keeps it."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}
REGEX = r"[a-z]{3,8}-[0-9]{2,4}(, [a-z]{3,8}-[0-9]{2,4}){1,3}"
CHOICES = ("red as a rose", "red as rust", "green as grass")
FORBIDDEN_CHOICES = 3
CHOICE_COUNT = 3


def _nothing(result: RequestResult) -> str | None:
    return None


@dataclass(frozen=True)
class Feature:
    """A feature and how it is asked for.

    Attributes:
        name: in words.
        fields: of `SamplingParams`, besides sampling, seed and `max_tokens`; may name `max_tokens` itself.
        check: what must be true of the answer.
    """

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    check: Check = _nothing

    def params(self, sampling: dict[str, Any], max_tokens: int) -> SamplingParams:
        """The request. Raises `RequestError` where the model or the options do not allow it."""
        return SamplingParams(**{"max_tokens": max_tokens, **sampling, **self.fields})


def features_for(plain: RequestResult, max_tokens: int, seed: int) -> list[Feature]:
    """Features made to matter for a prompt: tokens to ban, to stop at and to favour are taken from its plain output.

    Args:
        plain: the answer without drafting to the same prompt and sampling.
        max_tokens: most tokens of each output.
        seed: in force, to check the seeds of several choices by.
    """
    tokens, text = plain.token_ids, plain.text
    banned = sorted(set(tokens[:FORBIDDEN_CHOICES]))
    allowed = sorted({*tokens, *plain.prompt_token_ids})
    stop_token, stop_text = tokens[len(tokens) // 2], _middle(text)
    least = max(1, max_tokens // 2)
    return [
        Feature("plain"),
        Feature("repetition penalty", {"repetition_penalty": 1.3}),
        Feature(
            "presence and frequency penalty",
            {"presence_penalty": 1.0, "frequency_penalty": 0.7},
        ),
        Feature("logit bias", {"logit_bias": dict.fromkeys(banned, -4.0) | {allowed[0]: 2.0}}),
        Feature("allowed tokens", {"allowed_token_ids": allowed}, _only(allowed)),
        Feature("banned tokens", {"banned_token_ids": banned}, _none_of(banned)),
        Feature(
            "min_tokens",
            {"min_tokens": least, "stop_token_ids": [stop_token]},
            _at_least(least),
        ),
        Feature("stop token", {"stop_token_ids": [stop_token]}, _ends_at(stop_token)),
        Feature("stop string", {"stop": [stop_text]}, _without_text(stop_text)),
        Feature(
            "stop string, included",
            {"stop": [stop_text], "include_stop_str_in_output": True},
        ),
        Feature("ignore_eos", {"ignore_eos": True}, _at_least(max_tokens)),
        Feature("n = 3", {"n": CHOICE_COUNT}, _choices_seeded(seed)),
        Feature("log-probabilities", {"logprobs": 3, "prompt_logprobs": 2}, _scored),
        Feature("JSON schema", {"structured_outputs": StructuredOutputs(json=SCHEMA)}, _is_json),
        Feature("regex", {"structured_outputs": StructuredOutputs(regex=REGEX)}, _matches),
        Feature("choice", {"structured_outputs": StructuredOutputs(choice=CHOICES)}, _is_a_choice),
        Feature(
            "penalties, bias, regex and log-probabilities together",
            {
                "repetition_penalty": 1.2,
                "frequency_penalty": 0.5,
                "logit_bias": dict.fromkeys(banned, -4.0),
                "logprobs": 2,
                "structured_outputs": StructuredOutputs(regex=REGEX),
            },
            _matches,
        ),
    ]


def _middle(text: str) -> str:
    """A few characters from the middle of a text, to stop at."""
    piece = text[len(text) // 2 :][:4]
    return piece or "\n"


def _only(allowed: Sequence[int]) -> Check:
    def check(result: RequestResult) -> str | None:
        others = set(result.token_ids) - set(allowed)
        return f"tokens beyond the allowed ones: {sorted(others)[:5]}" if others else None

    return check


def _none_of(banned: Sequence[int]) -> Check:
    def check(result: RequestResult) -> str | None:
        found = set(result.token_ids) & set(banned)
        return f"banned tokens came: {sorted(found)[:5]}" if found else None

    return check


def _at_least(count: int) -> Check:
    def check(result: RequestResult) -> str | None:
        came = len(result.token_ids)
        return f"{came} tokens where at least {count} were asked for" if came < count else None

    return check


def _ends_at(token: int) -> Check:
    def check(result: RequestResult) -> str | None:
        inside = token in result.token_ids[:-1]
        return f"went on past the stop token {token}" if inside else None

    return check


def _without_text(stop: str) -> Check:
    def check(result: RequestResult) -> str | None:
        return f"the stop string {stop!r} is in the text" if stop in result.text else None

    return check


def _choices_seeded(seed: int) -> Check:
    def check(result: RequestResult) -> str | None:
        seeds = [choice.seed for choice in result.choices]
        wanted = [choice_seed(seed, index) for index in range(CHOICE_COUNT)]
        return None if seeds == wanted else f"the choices' seeds are {seeds} where {wanted} were due"

    return check


def _scored(result: RequestResult) -> str | None:
    rows, prompt = result.logprobs or [], result.prompt_logprobs or []
    if [row.token_id for row in rows] != result.token_ids:
        return "log-probabilities are not those of the output tokens"
    scored = [row.token_id for row in prompt[1:] if row is not None]
    if scored != result.prompt_token_ids[1:]:
        return "log-probabilities are not those of the prompt tokens"
    return None


def _is_json(result: RequestResult) -> str | None:
    if result.finish_reason != "stop":  # cut by max_tokens: a beginning of JSON is all there can be
        return None
    try:
        value = json.loads(result.text)
    except ValueError:
        return f"not JSON: {result.text[:60]!r}"
    fine = isinstance(value, dict) and set(value) == set(SCHEMA["properties"])
    return None if fine else f"not of the schema: {result.text[:60]!r}"


def _matches(result: RequestResult) -> str | None:
    if result.finish_reason != "stop" or re.fullmatch(REGEX, result.text):
        return None
    return f"does not match: {result.text[:60]!r}"


def _is_a_choice(result: RequestResult) -> str | None:
    if result.finish_reason != "stop":
        fine = any(choice.startswith(result.text) for choice in CHOICES)
    else:
        fine = result.text in CHOICES
    return None if fine else f"none of the choices: {result.text[:60]!r}"
