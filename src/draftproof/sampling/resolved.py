"""A request's sampling with nothing left open."""

from __future__ import annotations

import secrets
from dataclasses import dataclass


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

    @property
    def is_greedy(self) -> bool:
        """Whether every choice is the argmax."""
        return self.temperature == 0
