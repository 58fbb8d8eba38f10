"""What a request gives back."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields

from draftproof.errors import DraftproofError
from draftproof.sampling import TokenLogprobs


@dataclass
class PhaseSeconds:
    """Wall-clock seconds by phase of one request.

    `prefill` covers the prompt up to the first token (the drafter's share included); the others cover decoding:
    `draft` (the drafter's pass), `target` (the target's pass), `verify` (the acceptance rule), `commit` (drafter keys and
    values, text, stop rules). Requests that share a step each count all of it. `queue` is the wait for admission, also
    after a preemption; `total` the whole request.
    """

    prefill: float = 0.0
    draft: float = 0.0
    target: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    queue: float = 0.0
    total: float = 0.0

    @property
    def decode(self) -> float:
        """Seconds spent after the first token."""
        return self.draft + self.target + self.verify + self.commit


@dataclass
class RequestStats:
    """How a request went.

    Attributes:
        target_steps: decode steps, one target pass each; the prefill is none.
        drafted_tokens: draft tokens verified.
        accepted_tokens: draft tokens kept (those cut off by a stop or a limit are not).
        accepted_lengths: draft tokens kept, step by step.
        decode_tokens: tokens committed by decode steps, bonus tokens included, the prefill's own token excluded.
        preemptions: times it lost its memory to others and was recomputed.
        seconds: by phase.
        predicted_accepted: of `accepted_tokens`, those that came from the request's own `prediction`.
        predicted_rejected: tokens of the prediction that were verified and refused.
    """

    target_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_lengths: list[int] = field(default_factory=list)
    decode_tokens: int = 0
    preemptions: int = 0
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds)
    predicted_accepted: int = 0
    predicted_rejected: int = 0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens committed per decode step (tau), bonus included; 1.0 without drafting, 0.0 before any step."""
        return self.decode_tokens / self.target_steps if self.target_steps else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens per second of decoding, prompt and first token excluded; 0.0 before any step."""
        return self.decode_tokens / self.seconds.decode if self.seconds.decode else 0.0


@dataclass(frozen=True)
class Choice:
    """One of a request's `n` outputs.

    Attributes:
        index: 0 .. n - 1.
        text: the output text, cut at a stop string.
        token_ids: the output tokens, the end token or the token completing a stop string included.
        finish_reason: ``"stop"`` (end token, stop token or stop string), ``"length"`` (`max_tokens` or the context),
            ``"abort"`` (the caller no longer wanted it) or ``"error"``.
        stop_reason: the stop string or the request's own stop token that ended it; None for the model's end token and the rest.
        seed: the seed in force; as a request of its own (n = 1) it gives the same tokens, with any drafter or none.
        logprobs: of every output token, when the request asked for them.
        stats: how it went.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    seed: int
    logprobs: list[TokenLogprobs] | None
    stats: RequestStats
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class RequestResult:
    """The answer to one request. What belongs to one output is found on `choices`; for choice 0 also here.

    Attributes:
        request_id: the caller's, or one made up.
        prompt_token_ids: the prompt as the target saw it.
        choices: `n` outputs.
        cached_tokens: prompt tokens found in the prefix cache (at the first admission).
        prompt_logprobs: of every prompt token but the first (which is None), when the request asked for them.
        error: why it failed, or None.
    """

    request_id: str
    prompt_token_ids: list[int]
    choices: list[Choice]
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: DraftproofError | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def seed(self) -> int:
        return self.choices[0].seed

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        return self.choices[0].logprobs

    @property
    def stats(self) -> RequestStats:
        return self.choices[0].stats

    @property
    def stats_total(self) -> RequestStats:
        """Of all choices together: counts and `accepted_lengths` are summed up and joined; `seconds` are the longest of each
        phase, since choices share steps."""
        each = [choice.stats for choice in self.choices]
        names = [one.name for one in fields(PhaseSeconds)]
        return RequestStats(
            target_steps=sum(one.target_steps for one in each),
            drafted_tokens=sum(one.drafted_tokens for one in each),
            accepted_tokens=sum(one.accepted_tokens for one in each),
            accepted_lengths=[length for one in each for length in one.accepted_lengths],
            decode_tokens=sum(one.decode_tokens for one in each),
            preemptions=sum(one.preemptions for one in each),
            seconds=PhaseSeconds(*(max(getattr(one.seconds, name) for one in each) for name in names)),
            predicted_accepted=sum(one.predicted_accepted for one in each),
            predicted_rejected=sum(one.predicted_rejected for one in each),
        )


@dataclass(frozen=True)
class TextPiece:
    """Some shown text and whether the token that brought it was an accepted draft token."""

    text: str
    drafted: bool


@dataclass(frozen=True)
class StreamEvent:
    """What one step brought to one output.

    Attributes:
        text: text that may be shown now and will never change.
        token_ids: tokens committed by the step.
        pieces: `text`, token by token.
        finished: whether this is the request's last event.
        result: the whole result, on the last event.
        index: which of the request's `n` outputs.
        finish_reason, stop_reason: why this output ended, on its own last event.
        logprobs: of `token_ids`, when the request asked for them.
        request_id: the request's.
        time: ``time.monotonic()`` when the engine had it.
    """

    text: str
    token_ids: list[int]
    pieces: list[TextPiece]
    finished: bool
    result: RequestResult | None = None
    index: int = 0
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    request_id: str = ""
    time: float = field(default_factory=time.monotonic)
    stop_reason: str | int | None = None
