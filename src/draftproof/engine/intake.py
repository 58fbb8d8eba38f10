"""From what a user asks to a request the engine can run. Whatever is wrong with it is found here, and harms nobody else."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from draftproof.engine.chat_options import ChatOptions
from draftproof.engine.economics import Economist, RequestAcceptance
from draftproof.engine.loading import Loaded
from draftproof.engine.output_text import OutputText
from draftproof.engine.prediction import PredictedText, PredictionReader
from draftproof.engine.prompts import Messages, Prompt, encode_chat, encode_prompt
from draftproof.engine.request import Request
from draftproof.engine.results import StreamEvent
from draftproof.engine.sequence import Sequence
from draftproof.engine.stops import end_token_set
from draftproof.errors import RequestError
from draftproof.sampling import (
    Grammar,
    GrammarCompiler,
    ResolvedSampling,
    RowRules,
    SamplingParams,
    choice_seed,
)


class Intake:
    """Makes requests for one target. Serves any number of threads.

    Args:
        loaded: the target and its tokenizer.
        max_model_len: most tokens of prompt and output together.
    """

    def __init__(self, loaded: Loaded, max_model_len: int) -> None:
        self._loaded, self.max_model_len = loaded, max_model_len
        self._vocab_size = loaded.target.info.vocab_size
        self._grammars = GrammarCompiler(loaded.tokenizer, self._vocab_size, loaded.end_token_ids)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt. Raises `RequestError` DP401 to DP404."""
        return encode_prompt(self._loaded.tokenizer, prompt, self._vocab_size, self.max_model_len)

    def encode_chat(self, messages: Messages, options: ChatOptions) -> list[int]:
        """Token ids of a conversation. Raises `RequestError` DP401 to DP406."""
        return encode_chat(self._loaded.tokenizer, messages, self._vocab_size, self.max_model_len, options)

    def request(
        self,
        prompt: list[int],
        params: SamplingParams | None,
        deliver: Callable[[StreamEvent], None],
        economist: Economist,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> Request:
        """A request ready for `EngineCore.add`.

        Args:
            prompt: checked token ids, from `encode` or `encode_chat`.
            params: the user's; the model's defaults when None.
            deliver: takes the request's events.
            economist: the engine's.
            request_id: made up when None.
            priority: smaller goes first.

        Raises:
            RequestError: DP42x and DP43x, a sampling field is not acceptable; DP432, `params` is of another type.
        """
        if params is not None and not isinstance(params, SamplingParams):
            raise RequestError(
                "DP432", f"params must be SamplingParams or a list of them, got {type(params).__name__}"
            )
        sampling = (params or SamplingParams()).resolve(self._loaded.defaults, vocab_size=self._vocab_size)
        grammar = None
        if sampling.structured_outputs is not None:
            grammar = self._grammars.compile(sampling.structured_outputs)
        request = Request(
            request_id=request_id if request_id is not None else uuid.uuid4().hex,
            prompt_token_ids=prompt,
            sampling=sampling,
            max_length=self.max_model_len,
            deliver=deliver,
            priority=priority,
        )
        predicted = self._predicted(sampling)
        request.sequences = [
            self._sequence(request, index, grammar, economist.new_request(), predicted)
            for index in range(sampling.n)
        ]
        return request

    def _predicted(self, sampling: ResolvedSampling) -> PredictedText | None:
        prediction = sampling.prediction
        if prediction is None or sampling.draft_length == 0:
            return None
        if isinstance(prediction, str):
            prediction = self._loaded.tokenizer(prediction, add_special_tokens=False)["input_ids"]
        return PredictedText(prediction[: self.max_model_len])

    def _sequence(
        self,
        request: Request,
        index: int,
        grammar: Grammar | None,
        acceptance: RequestAcceptance,
        predicted: PredictedText | None,
    ) -> Sequence:
        sampling, prompt = request.sampling, request.prompt_token_ids
        # An output of a given form ends when the form is complete; there is nothing to go on with.
        ignore_eos = sampling.ignore_eos and grammar is None
        ends = end_token_set(self._loaded.end_token_ids, sampling.stop_token_ids, ignore_eos)
        return Sequence(
            request=request,
            index=index,
            seed=choice_seed(sampling.seed, index),
            end_token_ids=ends,
            text=self._text(prompt, sampling),
            rules=RowRules.of(sampling, prompt, ends, grammar, self._vocab_size),
            acceptance=acceptance,
            prediction=PredictionReader(predicted) if predicted is not None else None,
        )

    def _text(self, prompt: list[int], sampling: ResolvedSampling) -> OutputText:
        return OutputText(
            self._loaded.tokenizer,
            prompt,
            stop=sampling.stop,
            include_stop_str_in_output=sampling.include_stop_str_in_output,
            skip_special_tokens=sampling.skip_special_tokens,
            kinds=self._loaded.token_kinds,
            min_tokens=sampling.min_tokens,
        )
