"""`SamplingParams`: what a user says about how tokens are chosen and where the output ends."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.errors import DraftproofWarning, RequestError
from draftproof.sampling import fields
from draftproof.sampling.defaults import SamplingDefaults
from draftproof.sampling.resolved import ResolvedSampling, draw_seed


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping of one request. None means: what the model's `generation_config.json` says.

    Values are checked when the object is made and stored in plain types (stop strings and ids as tuples).

    Attributes:
        temperature: 0 for greedy, at most 1e6. Below 1e-5 it is taken as 0; from there on it is used exactly
            (vLLM raises values under 0.01 to 0.01). A model whose generation config names none is greedy.
        top_p: keep the likeliest tokens until their mass reaches this share, in ``(0, 1]``; 1 = off.
        top_k: keep this many of the likeliest tokens; 0 or -1 = all.
        min_p: drop tokens less likely than this times the likeliest one's probability, in ``[0, 1]``;
            0 = off.
        seed: fixes the output, with any drafter or none. Signed 64 bits; None or -1 draws one, which
            the result reports.
        max_tokens: the most tokens to generate, >= 1.
        stop: a string or strings at which the output ends; the text is cut before the one complete first.
        stop_token_ids: tokens that end the output, besides the model's own end tokens.
        ignore_eos: go on past the model's own end tokens.
        include_stop_str_in_output: keep the stop string (or the text of the end token) in the text.
        skip_special_tokens: leave special tokens out of the text; `token_ids` holds them in any case.

    Raises:
        RequestError: DP420 to DP428, one code a field; the message says what was expected and what came.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int = 256
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.temperature is not None:
            self._store("temperature", fields.check_temperature(self.temperature))
        if self.top_p is not None:
            self._store("top_p", fields.check_top_p(self.top_p))
        if self.top_k is not None:
            self._store("top_k", fields.check_top_k(self.top_k))
        if self.min_p is not None:
            self._store("min_p", fields.check_min_p(self.min_p))
        if self.seed is not None:
            self._store("seed", fields.check_seed(self.seed))
        self._store("max_tokens", fields.check_max_tokens(self.max_tokens))
        self._store("stop", fields.check_stop(self.stop))
        self._store("stop_token_ids", fields.check_token_ids(self.stop_token_ids))
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            fields.check_switch(name, getattr(self, name))

    def _store(self, name: str, value: object) -> None:
        # The class is frozen for its users; this is still construction.
        object.__setattr__(self, name, value)

    def resolve(self, defaults: SamplingDefaults, *, vocab_size: int | None = None) -> ResolvedSampling:
        """Fill in what the user left open: first from the model's defaults, then with neutral values.

        Args:
            defaults: the model's.
            vocab_size: number of token ids, to check `stop_token_ids` against; None skips that check.

        Returns:
            The request's sampling, complete. Each call without a seed draws another one.

        Raises:
            RequestError: DP427, a stop token id is not in the vocabulary.

        Warns:
            DraftproofWarning: top_p, top_k or min_p was set while the temperature, left out, is 0 by default.
        """
        self._check_stop_token_range(vocab_size)
        temperature = defaults.temperature if self.temperature is None else self.temperature
        greedy = temperature < fields.GREEDY_BELOW
        if greedy:
            self._warn_of_idle_fields()
        top_p = defaults.top_p if self.top_p is None else self.top_p
        top_k = defaults.top_k if self.top_k is None else self.top_k
        min_p = defaults.min_p if self.min_p is None else self.min_p
        return ResolvedSampling(
            temperature=0.0 if greedy else temperature,
            # The argmax survives every cut, so greedy decoding is spared the work.
            top_p=1.0 if greedy else max(top_p, fields.MIN_TOP_P),
            top_k=0 if greedy else max(top_k, 0),
            min_p=0.0 if greedy else min_p,
            seed=draw_seed() if self.seed is None or self.seed == -1 else self.seed,
            max_tokens=self.max_tokens,
            stop=fields.check_stop(self.stop),
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
        )

    def _check_stop_token_range(self, vocab_size: int | None) -> None:
        for token_id in self.stop_token_ids or ():
            if vocab_size is not None and token_id >= vocab_size:
                raise RequestError(
                    "DP427", f"stop_token_ids must be below the vocabulary size {vocab_size}, got {token_id}"
                )

    def _warn_of_idle_fields(self) -> None:
        idle = [name for name in ("top_p", "top_k", "min_p") if getattr(self, name) is not None]
        if idle and self.temperature is None:
            warnings.warn(
                f"{', '.join(idle)} set without a temperature: the model's default is greedy decoding, "
                "where it has no effect; set temperature (say 1.0) to sample",
                DraftproofWarning,
                stacklevel=3,
            )
