"""The answer to a completion request: events to chunks, or results to a whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from draftproof.engine import Choice, RequestResult, StreamEvent
from draftproof.server.protocol.answers import ChunkWriter, Frame, Json, Tally, to_json
from draftproof.server.protocol.completions import CompletionRequest
from draftproof.server.protocol.logprobs import CompletionLogprobs, TokenBytes, prompt_logprobs


class CompletionAnswer:
    """One request's answer. Choice j of prompt i has the index ``i * n + j``.

    Args:
        frame: id, model and so on.
        request: what was asked for.
        prompts: token ids of each prompt.
        echoed: the prompts' texts, or None where they are not to be shown.
        outputs: outputs of each prompt.
        seed: in force; given back.
        token_bytes: for log-probabilities.
        hidden: whether the output, made because one token has to be, is not to be shown (`max_tokens` 0 with `echo`).
    """

    def __init__(
        self,
        frame: Frame,
        request: CompletionRequest,
        prompts: list[list[int]],
        echoed: list[str] | None,
        outputs: int,
        seed: int | None,
        token_bytes: TokenBytes,
        hidden: bool = False,
    ) -> None:
        self._frame, self._request, self._prompts, self._echoed = frame, request, prompts, echoed
        self._n, self._seed, self._bytes, self._hidden = outputs, seed, token_bytes, hidden
        self._writer = ChunkWriter(frame, request, sum(len(prompt) for prompt in prompts))
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._opened: set[int] = set()

    def whole(self, results: Sequence[RequestResult]) -> Json:
        """The answer in one piece."""
        tally = Tally.of(results, shown=not self._hidden)
        choices = [
            self._choice(number, result, choice)
            for number, result in enumerate(results)
            for choice in result.choices
        ]
        return self._frame.whole(
            choices, tally.usage(self._request.prediction is not None), self._counts(tally)
        )

    async def stream(self, events: AsyncIterator[tuple[int, StreamEvent]]) -> AsyncGenerator[str, None]:
        """The answer chunk by chunk."""
        results: list[RequestResult] = []
        async for number, event in events:
            if event.result is not None:
                results.append(event.result)
            tally = Tally.of(results, not self._hidden) if len(results) == len(self._prompts) else None
            text = self._chunks(number, event, tally)
            if tally is not None and self._request.wants_usage:
                text += self._writer.last(tally, self._counts(tally))
            if text:
                yield text

    def _counts(self, tally: Tally) -> Json:
        return {"speculative": tally.speculative(), "seed": self._seed}

    def _choice(self, number: int, result: RequestResult, choice: Choice) -> Json:
        request = self._request
        text = "" if self._hidden else choice.text
        shown: Json = {
            "index": number * self._n + choice.index,
            "text": text if self._echoed is None else self._echoed[number] + text,
            "logprobs": None if request.logprobs is None else self._whole_logprobs(result, choice),
            "finish_reason": "length" if self._hidden else choice.finish_reason,
            "stop_reason": None if self._hidden else choice.stop_reason,
        }
        if request.return_token_ids:
            shown["prompt_token_ids"] = result.prompt_token_ids
            shown["token_ids"] = [] if self._hidden else choice.token_ids
        if request.prompt_logprobs is not None:
            shown["prompt_logprobs"] = prompt_logprobs(
                result.prompt_logprobs, request.prompt_logprobs, self._bytes
            )
        return shown

    def _whole_logprobs(self, result: RequestResult, choice: Choice) -> Json:
        entries = [] if self._hidden else list(choice.logprobs or ())
        first = None
        if self._echoed is not None:
            entries = [*(result.prompt_logprobs or ()), *entries]  # type: ignore[list-item]
            first = result.prompt_token_ids[0]
        return CompletionLogprobs(self._request.logprobs or 0, self._bytes).take(entries, first)

    def _chunks(self, number: int, event: StreamEvent, tally: Tally | None) -> str:
        index = number * self._n + event.index
        written = [] if index in self._opened else [self._opening(number, index)]
        if not self._hidden:
            self._writer.count(event)
            written.append(self._text(index, event))
        if event.finish_reason is not None:
            reason, stop = ("length", None) if self._hidden else (event.finish_reason, event.stop_reason)
            more, extra = f',"stop_reason":{to_json(stop)}', None
            if tally is not None and self._request.wants_pieces and not self._request.wants_usage:
                extra = self._counts(tally)
            written.append(self._writer.chunk(_choice(index, "", finish=to_json(reason), more=more), extra))
        return "".join(written)

    def _opening(self, number: int, index: int) -> str:
        """The prompt, where it is to be seen at all."""
        self._opened.add(index)
        ids = (
            f',"prompt_token_ids":{to_json(self._prompts[number])}' if self._request.return_token_ids else ""
        )
        text = "" if self._echoed is None else self._echoed[number]
        return self._writer.chunk(_choice(index, text, more=ids)) if text or ids else ""

    def _text(self, index: int, event: StreamEvent) -> str:
        logprobs = "null"
        if self._request.logprobs is not None and event.logprobs:
            writer = self._logprobs.get(index)
            if writer is None:
                writer = self._logprobs[index] = CompletionLogprobs(self._request.logprobs, self._bytes)
            logprobs = to_json(writer.take(event.logprobs))
        ids = (
            f',"token_ids":{to_json(event.token_ids)}'
            if self._request.return_token_ids and event.token_ids
            else ""
        )
        extra = self._writer.pieces(event) if event.pieces else None
        if not event.text and logprobs == "null" and not ids and not extra:
            return ""
        return self._writer.chunk(_choice(index, event.text, logprobs, more=ids), extra)


def _choice(index: int, text: str, logprobs: str = "null", finish: str = "null", more: str = "") -> str:
    said = to_json(text)
    return f'{{"index":{index},"text":{said},"logprobs":{logprobs},"finish_reason":{finish}{more}}}'
