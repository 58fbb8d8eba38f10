"""The answer to a chat request: events to chunks, or the result to a whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import replace

from draftproof.engine import Choice, RequestResult, StreamEvent
from draftproof.server.output_parser import (
    ContentDelta,
    Delta,
    OutputParser,
    ReasoningDelta,
    ToolCallStart,
)
from draftproof.server.protocol.answers import ChunkWriter, Frame, Json, Tally, to_json
from draftproof.server.protocol.chat import ChatRequest
from draftproof.server.protocol.logprobs import TokenBytes, chat_logprobs, prompt_logprobs
from draftproof.server.reasoning import ReasoningFormat


class ChatAnswer:
    """One request's answer.

    Args:
        frame: id, model and so on.
        request: what was asked for.
        prompt_token_ids: the rendered conversation.
        seed: in force; given back.
        parser: makes what tells thoughts and tool calls from text, one a choice; None where there is only text.
        token_bytes: for log-probabilities.
        reasoning: how thoughts are marked; None where there are none.
    """

    def __init__(
        self,
        frame: Frame,
        request: ChatRequest,
        prompt_token_ids: list[int],
        seed: int | None,
        parser: Callable[[], OutputParser] | None,
        token_bytes: TokenBytes,
        reasoning: ReasoningFormat | None = None,
    ) -> None:
        self._frame, self._request, self._prompt = frame, request, prompt_token_ids
        self._seed, self._make_parser, self._bytes = seed, parser, token_bytes
        self._reasoning = reasoning
        self._parsers: dict[int, OutputParser] = {}
        self._opened: set[int] = set()
        self._writer = ChunkWriter(frame, request, len(prompt_token_ids))

    def whole(self, result: RequestResult) -> Json:
        """The answer in one piece."""
        request, tally = self._request, self._tally(result)
        extra = self._counts(tally)
        if request.return_token_ids:
            extra["prompt_token_ids"] = result.prompt_token_ids
        if request.prompt_logprobs is not None:
            extra["prompt_logprobs"] = prompt_logprobs(
                result.prompt_logprobs, request.prompt_logprobs, self._bytes
            )
        choices = [self._choice(choice) for choice in result.choices]
        return self._frame.whole(choices, tally.usage(request.prediction is not None), extra)

    async def stream(self, events: AsyncIterator[tuple[int, StreamEvent]]) -> AsyncGenerator[str, None]:
        """The answer chunk by chunk."""
        async for _, event in events:
            text = self._chunks(event)
            if event.result is not None and self._request.wants_usage:
                tally = self._tally(event.result)
                text += self._writer.last(tally, self._counts(tally))
            if text:
                yield text

    def _tally(self, result: RequestResult) -> Tally:
        tally = Tally.of([result])
        if self._reasoning is None:
            return tally
        thoughts = [
            self._reasoning.thought_tokens(choice.text, choice.token_ids) for choice in result.choices
        ]
        known = [count for count in thoughts if count is not None]
        return replace(tally, reasoning_tokens=sum(known) if len(known) == len(thoughts) else None)

    def _counts(self, tally: Tally) -> Json:
        return {"speculative": tally.speculative(), "seed": self._seed}

    def _choice(self, choice: Choice) -> Json:
        called, message = False, {"role": "assistant", "content": choice.text, "refusal": None}
        if self._make_parser is not None:
            parser = self._make_parser()
            message = message_of(parser.feed(choice.text, finished=True))
            called = parser.called
        shown: Json = {
            "index": choice.index,
            "message": message,
            "logprobs": None if choice.logprobs is None else self._logprobs(choice),
            "finish_reason": _finish(choice.finish_reason, called),
            "stop_reason": choice.stop_reason,
        }
        if self._request.return_token_ids:
            shown["token_ids"] = choice.token_ids
        return shown

    def _logprobs(self, source: Choice | StreamEvent) -> Json:
        return chat_logprobs(source.logprobs or (), self._request.top_logprobs or 0, self._bytes)

    def _chunks(self, event: StreamEvent) -> str:
        """All that one event says, as the text of one or more chunks."""
        self._writer.count(event)
        written = [] if event.index in self._opened else [self._opening(event.index)]
        logprobs = to_json(self._logprobs(event)) if self._request.logprobs and event.logprobs else "null"
        ids = (
            f',"token_ids":{to_json(event.token_ids)}'
            if self._request.return_token_ids and event.token_ids
            else ""
        )
        extra = self._writer.pieces(event) if event.pieces else None
        deltas = self._deltas(event)
        if not deltas and (logprobs != "null" or ids or extra):
            deltas = ["{}"]
        for delta in deltas:
            written.append(self._writer.chunk(_choice(event.index, delta, logprobs, "null", ids), extra))
            logprobs, ids, extra = "null", "", None  # once an event
        if event.finish_reason is not None:
            written.append(self._closing(event))
        return "".join(written)

    def _opening(self, index: int) -> str:
        self._opened.add(index)
        delta = '{"role":"assistant","content":""}'
        extra = {"prompt_token_ids": self._prompt} if self._request.return_token_ids and index == 0 else None
        return self._writer.chunk(_choice(index, delta), extra)

    def _closing(self, event: StreamEvent) -> str:
        parser = self._parsers.get(event.index)
        reason = _finish(event.finish_reason, parser is not None and parser.called)
        extra = None
        if event.result is not None and self._request.wants_pieces and not self._request.wants_usage:
            extra = self._counts(Tally.of([event.result]))
        stop = f',"stop_reason":{to_json(event.stop_reason)}'
        return self._writer.chunk(_choice(event.index, "{}", finish=to_json(reason), more=stop), extra)

    def _deltas(self, event: StreamEvent) -> list[str]:
        if self._make_parser is None:
            return ['{"content":' + to_json(event.text) + "}"] if event.text else []
        parser = self._parsers.get(event.index)
        if parser is None:
            parser = self._parsers[event.index] = self._make_parser()
        return [
            to_json(_shown(delta))
            for delta in parser.feed(event.text, finished=event.finish_reason is not None)
        ]


def _choice(index: int, delta: str, logprobs: str = "null", finish: str = "null", more: str = "") -> str:
    return f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish}{more}}}'


def _finish(reason: str | None, called: bool) -> str | None:
    return "tool_calls" if called and reason == "stop" else reason


def _shown(delta: Delta) -> Json:
    if isinstance(delta, ContentDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    if isinstance(delta, ToolCallStart):
        function = {"name": delta.name, "arguments": ""}
        return {
            "tool_calls": [{"index": delta.index, "id": delta.id, "type": "function", "function": function}]
        }
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}


def message_of(deltas: Iterable[Delta]) -> Json:
    """The message that the deltas of one output add up to. Its content is None where there are calls and nothing else."""
    content, thoughts = "", ""
    calls: dict[int, Json] = {}
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content += delta.text
        elif isinstance(delta, ReasoningDelta):
            thoughts += delta.text
        elif isinstance(delta, ToolCallStart):
            function = {"name": delta.name, "arguments": ""}
            calls[delta.index] = {"id": delta.id, "type": "function", "function": function}
        else:
            calls[delta.index]["function"]["arguments"] += delta.text
    message: Json = {
        "role": "assistant",
        "content": content if content or not calls else None,
        "refusal": None,
    }
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message
