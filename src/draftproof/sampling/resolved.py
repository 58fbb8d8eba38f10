"""A request's sampling with nothing left open."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from draftproof.sampling.structured import StructuredOutputs


def draw_seed() -> int:
    """A fresh seed of 63 random bits, >= 0, from the operating system's generator."""
    return secrets.randbits(63)


@dataclass(frozen=True)
class ResolvedSampling:
    """What the engine works with: every field concrete, every value valid.

    Attributes:
        temperature: 0 for greedy, else ``1e-5 <= T <= 1e6``; `logit / T` is finite for every finite logit.
        top_p: in ``(0, 1]``, 1 = off; 1 when greedy.
        top_k: >= 0, 0 = all tokens; 0 when greedy.
        min_p: in ``[0, 1]``, 0 = off; 0 when greedy.
        seed: signed 64 bits; the user's or a drawn one. Set when greedy too, where it has no effect.
        max_tokens: most tokens to generate, >= 1.
        stop: stop strings, none empty.
        stop_token_ids: tokens that end the output besides the model's own end tokens.
        ignore_eos: whether the model's own end tokens are ordinary tokens.
        include_stop_str_in_output: whether the text keeps the stop string, or the text of the end token.
        skip_special_tokens: whether special tokens leave no text.
        repetition_penalty: 1e-6 to 1e6, 1 = off.
        presence_penalty: -2 to 2, 0 = off.
        frequency_penalty: -2 to 2, 0 = off.
        logit_bias: pairs of token id and bias, in order of id, no id twice.
        allowed_token_ids: None = all; never empty.
        banned_token_ids: never all of the allowed ones.
        min_tokens: 0 to `max_tokens`.
        n: how many outputs, >= 1.
        logprobs: how many of the likeliest tokens to report beside the output token; None = no log-probabilities at all.
            -1 = all, only where the vocabulary size was not known.
        prompt_logprobs: the same for the prompt.
        structured_outputs: the form of the output, or None.
        draft_length: draft tokens a step; None = as the engine's mode says.
        prediction: what the output will probably be; never empty.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    max_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: frozenset[int] | None = None
    banned_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None
    draft_length: int | None = None
    prediction: str | tuple[int, ...] | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether every choice is the argmax."""
        return self.temperature == 0
