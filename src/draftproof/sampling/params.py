"""`SamplingParams`: what a user says about how tokens are chosen and where the output ends."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftproof.errors import DraftproofWarning, RequestError
from draftproof.sampling import fields
from draftproof.sampling.defaults import SamplingDefaults
from draftproof.sampling.resolved import ResolvedSampling, draw_seed
from draftproof.sampling.structured import StructuredOutputs


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
        repetition_penalty: divides the positive logits of every token of prompt and output so far and multiplies the
            others, above 0; 1 = off (Keskar et al. 2019, "CTRL", section 4.1).
        presence_penalty: taken from the logits of tokens that the output already has, -2 to 2; 0 = off.
        frequency_penalty: the same times how often the output has the token, -2 to 2; 0 = off.
        logit_bias: token id (or its digits as a string) to what is added to its logit, -100 to 100.
        allowed_token_ids: the only tokens that may come; None = all.
        banned_token_ids: tokens that never come; an empty list lifts what the model's generation config bans.
        min_tokens: no end token before that many output tokens, 0 to `max_tokens`.
        n: how many outputs to generate, 1 to 16,384; output k has the seed `choice_seed(seed, k)`.
        logprobs: report each output token's log-probability and this many of the likeliest ones'; 0 = of the output token
            alone, -1 = of the whole vocabulary, None = none. Of the model's raw logits: before penalties, masks and
            temperature.
        prompt_logprobs: the same for the tokens of the prompt.
        structured_outputs: the form the output must have.
        draft_length: how far to draft this request, which changes its speed and never its tokens: None or ``"auto"`` = as the
            engine's draft mode says; 0 = never; N = N tokens a step, or the most the drafter can. Under mode ``"off"`` nothing
            is drafted whatever is asked.
        prediction: what the output will probably be, as text or token ids, e.g. a file that is to be changed a little. Where
            the output goes along with it, its tokens are drafts, drafter or none. It never changes the output.

    Raises:
        RequestError: DP420 to DP428 and DP433 to DP439, a code a field or kind of field, DP444, DP690 and DP691; the message says
            which field, what was expected and what came.
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
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Mapping[str, float] | Sequence[tuple[int, float]] | None = None
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] | None = None
    min_tokens: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None
    draft_length: int | str | None = None
    prediction: str | Sequence[int] | None = None

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
        self._check_row_rules()
        self._store("n", fields.check_n(self.n))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._store(name, fields.check_logprobs(name, getattr(self, name)))
        if self.draft_length is not None:
            self._store("draft_length", fields.check_draft_length(self.draft_length))
        if self.prediction is not None:
            self._store("prediction", fields.check_prediction(self.prediction))

    def _check_row_rules(self) -> None:
        """The fields that change logit rows."""
        if self.repetition_penalty is not None:
            self._store("repetition_penalty", fields.check_repetition_penalty(self.repetition_penalty))
        for name in ("presence_penalty", "frequency_penalty"):
            self._store(name, fields.check_output_penalty(name, getattr(self, name)))
        self._store("logit_bias", fields.check_logit_bias(self.logit_bias))
        if self.allowed_token_ids is not None:
            self._store("allowed_token_ids", fields.check_allowed_token_ids(self.allowed_token_ids))
        if self.banned_token_ids is not None:
            self._store("banned_token_ids", fields.check_banned_token_ids(self.banned_token_ids))
        fields.check_some_token_left(self.allowed_token_ids, self.banned_token_ids, None)
        if self.min_tokens is not None:
            self._store("min_tokens", fields.check_min_tokens(self.min_tokens, self.max_tokens))
        if self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputs):
            raise RequestError(
                "DP444",
                "structured_outputs must be a StructuredOutputs, got "
                f"{fields.shown(self.structured_outputs)}",
            )

    def _store(self, name: str, value: object) -> None:
        # The class is frozen for its users; this is still construction.
        object.__setattr__(self, name, value)

    def resolve(self, defaults: SamplingDefaults, *, vocab_size: int | None = None) -> ResolvedSampling:
        """Fill in what the user left open: first from the model's defaults, then with neutral values.

        Args:
            defaults: the model's.
            vocab_size: number of token ids, to check the fields that name tokens against; None skips these checks.

        Returns:
            The request's sampling, complete. Each call without a seed draws another one.

        Raises:
            RequestError: DP427, DP435, DP436, a token id is not in the vocabulary; DP436, the model's banned tokens leave
                none of the allowed ones; DP439, more log-probabilities than tokens.

        Warns:
            DraftproofWarning: top_p, top_k or min_p was set while the temperature, left out, is 0 by default.
        """
        self._check_token_ranges(vocab_size)
        temperature = defaults.temperature if self.temperature is None else self.temperature
        greedy = temperature < fields.GREEDY_BELOW
        if greedy:
            self._warn_of_idle_fields()
        top_p = defaults.top_p if self.top_p is None else self.top_p
        top_k = defaults.top_k if self.top_k is None else self.top_k
        min_p = defaults.min_p if self.min_p is None else self.min_p
        banned = defaults.banned_token_ids if self.banned_token_ids is None else self.banned_token_ids
        fields.check_some_token_left(self.allowed_token_ids, banned, vocab_size)
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
            repetition_penalty=(
                defaults.repetition_penalty if self.repetition_penalty is None else self.repetition_penalty
            ),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=fields.check_logit_bias(self.logit_bias),
            allowed_token_ids=None if self.allowed_token_ids is None else frozenset(self.allowed_token_ids),
            # The model's own list may name tokens that its embedding lacks; the user's were checked.
            banned_token_ids=frozenset(i for i in banned if vocab_size is None or i < vocab_size),
            min_tokens=(
                min(defaults.min_tokens, self.max_tokens) if self.min_tokens is None else self.min_tokens
            ),
            n=self.n,
            logprobs=fields.count_of_logprobs("logprobs", self.logprobs, vocab_size),
            prompt_logprobs=fields.count_of_logprobs("prompt_logprobs", self.prompt_logprobs, vocab_size),
            structured_outputs=self.structured_outputs,
            draft_length=None if isinstance(self.draft_length, str) else self.draft_length,
            prediction=self._prediction(),
        )

    def _prediction(self) -> str | tuple[int, ...] | None:
        """None for an empty one, which predicts nothing."""
        given = self.prediction
        return (given if isinstance(given, str) else tuple(given)) if given else None

    def _check_token_ranges(self, vocab_size: int | None) -> None:
        if vocab_size is None:
            return
        biased = [token_id for token_id, _ in fields.check_logit_bias(self.logit_bias)]
        for code, name, ids in (
            ("DP427", "stop_token_ids", self.stop_token_ids),
            ("DP435", "logit_bias", biased),
            ("DP436", "allowed_token_ids", self.allowed_token_ids),
            ("DP436", "banned_token_ids", self.banned_token_ids),
            ("DP691", "prediction", () if isinstance(self.prediction, str) else self.prediction),
        ):
            fields.check_in_vocabulary(code, name, ids or (), vocab_size)

    def _warn_of_idle_fields(self) -> None:
        idle = [name for name in ("top_p", "top_k", "min_p") if getattr(self, name) is not None]
        if idle and self.temperature is None:
            warnings.warn(
                f"{', '.join(idle)} set without a temperature: the model's default is greedy decoding, "
                "where it has no effect; set temperature (say 1.0) to sample",
                DraftproofWarning,
                stacklevel=3,
            )
