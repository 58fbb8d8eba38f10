"""What a request gives back."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PhaseSeconds:
    """Wall-clock seconds by phase of one request.

    `prefill` covers the prompt up to the first token (the drafter's share included); the others cover decoding:
    `draft` (the drafter's pass), `target` (the target's pass), `verify` (the acceptance rule), `commit` (drafter keys and
    values, text, stop rules). `total` is the whole request.
    """

    prefill: float = 0.0
    draft: float = 0.0
    target: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
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
        seconds: by phase.
    """

    target_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_lengths: list[int] = field(default_factory=list)
    decode_tokens: int = 0
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens committed per decode step (tau), bonus included; 1.0 without drafting, 0.0 before any step."""
        return self.decode_tokens / self.target_steps if self.target_steps else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens per second of decoding, prompt and first token excluded; 0.0 before any step."""
        return self.decode_tokens / self.seconds.decode if self.seconds.decode else 0.0


@dataclass(frozen=True)
class RequestResult:
    """The answer to one request.

    Attributes:
        text: the output text, cut at a stop string.
        token_ids: the output tokens, the end token or the token completing a stop string included.
        prompt_token_ids: the prompt as the target saw it.
        finish_reason: ``"stop"`` (end token, stop token or stop string) or ``"length"`` (`max_tokens` or the context).
        seed: the seed in force; giving it again gives the same tokens, with any drafter or none.
        stats: how it went.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    seed: int
    stats: RequestStats


@dataclass(frozen=True)
class TextPiece:
    """Some shown text and whether the token that brought it was an accepted draft token."""

    text: str
    drafted: bool


@dataclass(frozen=True)
class StreamEvent:
    """What one step brought.

    Attributes:
        text: text that may be shown now and will never change.
        token_ids: tokens committed by the step.
        pieces: `text`, token by token.
        finished: whether this is the last event.
        result: the whole result, on the last event.
    """

    text: str
    token_ids: list[int]
    pieces: list[TextPiece]
    finished: bool
    result: RequestResult | None = None
