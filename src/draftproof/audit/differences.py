"""Where two runs of the same request part, and how close a call the target had there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.engine import Choice, RequestResult
from draftproof.sampling import TokenLogprobs

NEAR_TIE = 0.05
"""Nats between the two likeliest tokens below which a difference is called a near tie: bfloat16 rounding reaches that far."""


@dataclass(frozen=True)
class TokenSeen:
    """A token at the place where two runs part.

    Attributes:
        token_id: None where the output had already ended.
        text: the token's own text.
        logprob: of the token; None where the request did not report any.
        margin: log-probability of the row's likeliest token minus that of the second, in nats, from the raw logits; None
            likewise.
    """

    token_id: int | None
    text: str
    logprob: float | None
    margin: float | None


@dataclass(frozen=True)
class Difference:
    """The first place where a run differs from the one it is compared with.

    Attributes:
        prompt: which prompt, from 1.
        kind: what was asked of it.
        choice: which of the request's outputs.
        what: ``"token"``, ``"logprobs"``, ``"prompt_logprobs"``, ``"text"``, ``"finish_reason"``, ``"seed"``, ``"choices"``.
        position: output (or prompt) token, from 0; None where the difference has no place.
        expected: of the run without drafting, alone.
        came: of the other one.
        detail: in words.
    """

    prompt: int
    kind: str
    choice: int
    what: str
    position: int | None
    expected: TokenSeen | None
    came: TokenSeen | None
    detail: str

    @property
    def near_tie(self) -> bool:
        """Whether either run had its two likeliest tokens within `NEAR_TIE` at the first token that differs."""
        margins = [seen.margin for seen in (self.expected, self.came) if seen is not None]
        return self.what == "token" and any(m is not None and m < NEAR_TIE for m in margins)


def first_difference(
    prompt: int,
    kind: str,
    expected: RequestResult,
    came: RequestResult,
    text_of: Callable[[int], str],
) -> Difference | None:
    """The first difference between two answers to the same request, tokens before anything else; None when there is none.

    Args:
        prompt, kind: of the request, to be repeated in the difference.
        expected: without drafting, alone.
        came: the run under test.
        text_of: the text of a token.
    """
    if len(expected.choices) != len(came.choices):
        detail = f"{len(expected.choices)} outputs without drafting, {len(came.choices)} here"
        return Difference(prompt, kind, 0, "choices", None, None, None, detail)
    for find in (_token, _logprobs, _rest):
        for ours, theirs in zip(expected.choices, came.choices, strict=True):
            found = find(prompt, kind, ours, theirs, text_of)
            if found is not None:
                return found
    at = first_unequal(expected.prompt_logprobs or [], came.prompt_logprobs or [])
    if at is not None:
        detail = f"log-probabilities of prompt token {at} differ"
        return Difference(prompt, kind, 0, "prompt_logprobs", at, None, None, detail)
    return None


def _token(
    prompt: int, kind: str, ours: Choice, theirs: Choice, text_of: Callable[[int], str]
) -> Difference | None:
    at = first_unequal(ours.token_ids, theirs.token_ids)
    if at is None:
        return None
    expected, came = _seen(ours, at, text_of), _seen(theirs, at, text_of)
    detail = (
        f"output token {at}: {_named(expected)} without drafting, alone; {_named(came)} here; "
        f"margins of the two likeliest {_nats(expected)} and {_nats(came)}"
    )
    return Difference(prompt, kind, ours.index, "token", at, expected, came, detail)


def _logprobs(
    prompt: int, kind: str, ours: Choice, theirs: Choice, text_of: Callable[[int], str]
) -> Difference | None:
    at = first_unequal(ours.logprobs or [], theirs.logprobs or [])
    if at is None:
        return None
    expected, came = _seen(ours, at, text_of), _seen(theirs, at, text_of)
    detail = (
        f"output token {at}: same token, log-probability {_number(expected)} without drafting, alone; {_number(came)} here; "
        f"margins of the two likeliest {_nats(expected)} and {_nats(came)}"
    )
    return Difference(prompt, kind, ours.index, "logprobs", at, expected, came, detail)


def _rest(
    prompt: int, kind: str, ours: Choice, theirs: Choice, text_of: Callable[[int], str]
) -> Difference | None:
    for what in ("finish_reason", "text", "seed"):
        expected, came = getattr(ours, what), getattr(theirs, what)
        if expected != came:
            detail = f"{what}: {str(expected)[-60:]!r} without drafting, {str(came)[-60:]!r} here"
            return Difference(prompt, kind, ours.index, what, None, None, None, detail)
    return None


def first_unequal(ours: Sequence[object], theirs: Sequence[object]) -> int | None:
    """Index of the first entry that differs or is missing; None when there is none."""
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return index
    shorter = min(len(ours), len(theirs))
    return None if len(ours) == len(theirs) else shorter


def _seen(choice: Choice, at: int, text_of: Callable[[int], str]) -> TokenSeen:
    if at >= len(choice.token_ids):
        return TokenSeen(None, "", None, None)
    token = choice.token_ids[at]
    row = choice.logprobs[at] if choice.logprobs is not None and at < len(choice.logprobs) else None
    return TokenSeen(token, text_of(token), row.logprob if row is not None else None, margin(row))


def margin(row: TokenLogprobs | None) -> float | None:
    """Nats between a row's two likeliest tokens; None where fewer than two were reported."""
    return row.top[0][1] - row.top[1][1] if row is not None and len(row.top) > 1 else None


def _named(seen: TokenSeen) -> str:
    return "no token" if seen.token_id is None else f"{seen.text!r} ({seen.token_id})"


def _nats(seen: TokenSeen) -> str:
    return "unknown" if seen.margin is None else f"{seen.margin:.3g}"


def _number(seen: TokenSeen) -> str:
    return "none" if seen.logprob is None else repr(seen.logprob)
