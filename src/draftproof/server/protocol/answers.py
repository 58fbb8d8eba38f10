"""The frame of an answer and what is counted in it, in OpenAI's shapes.

Chunks are written as text around a head made once: with many streams on the cores that the engine needs, a chunk has to cost next
to nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.engine import RequestResult, StreamEvent
from draftproof.server.protocol.common import TextRequest

Json = dict[str, Any]

to_json: Callable[[object], str] = json.JSONEncoder(separators=(",", ":")).encode
"""Compact JSON in plain ASCII: some clients split a stream's lines at every character that Unicode calls a line's end."""


@dataclass(frozen=True)
class Frame:
    """What all parts of one answer have in common.

    Attributes:
        id: of the answer.
        kind: ``"chat.completion"`` or ``"text_completion"``.
        created: seconds since 1970.
        model: the served name asked for.
        fingerprint: what runs here: model, drafter, version.
    """

    id: str
    kind: str
    created: int
    model: str
    fingerprint: str

    def whole(self, choices: list[Json], usage: Json, extra: Json) -> Json:
        """A complete answer.

        Args:
            choices, usage: as OpenAI has them.
            extra: fields of ours, at the end.
        """
        return {**self._head(self.kind), "choices": choices, "usage": usage, **extra}

    def chunk_head(self) -> str:
        """What a chunk starts with, up to the value of ``choices``."""
        kind = self.kind + ".chunk" if self.kind.startswith("chat") else self.kind
        return "data: " + to_json(self._head(kind))[:-1] + ',"choices":'

    def _head(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


DONE = "data: [DONE]\n\n"


@dataclass(frozen=True)
class Tally:
    """Counts of one answer, over all its prompts and choices.

    Attributes:
        prompt_tokens, cached_tokens, completion_tokens: tokens.
        steps: target passes after the first token, one sequence each.
        drafted, accepted: draft tokens verified and kept.
        decode_tokens: tokens that the steps brought.
        predicted_accepted, predicted_rejected: of a prediction.
        reasoning_tokens: of the completion, those that are thoughts; None where the model has none or they cannot be counted.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    steps: int
    drafted: int
    accepted: int
    decode_tokens: int
    predicted_accepted: int
    predicted_rejected: int
    reasoning_tokens: int | None = None

    @classmethod
    def of(cls, results: Sequence[RequestResult], shown: bool = True) -> Tally:
        """The counts of some results; `shown` False where the output was only made because one token has to be."""
        stats = [choice.stats for result in results for choice in result.choices]
        tokens = [len(choice.token_ids) for result in results for choice in result.choices]
        return cls(
            prompt_tokens=sum(len(result.prompt_token_ids) for result in results),
            cached_tokens=sum(result.cached_tokens for result in results),
            completion_tokens=sum(tokens) if shown else 0,
            steps=sum(one.target_steps for one in stats),
            drafted=sum(one.drafted_tokens for one in stats),
            accepted=sum(one.accepted_tokens for one in stats),
            decode_tokens=sum(one.decode_tokens for one in stats),
            predicted_accepted=sum(one.predicted_accepted for one in stats),
            predicted_rejected=sum(one.predicted_rejected for one in stats),
        )

    def usage(self, predicted: bool) -> Json:
        """OpenAI's `usage`.

        Args:
            predicted: whether the request had a prediction; only then are its tokens reported.
        """
        counts: Json = running_usage(self.prompt_tokens, self.completion_tokens)
        counts["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        details = {}
        if predicted:
            details["accepted_prediction_tokens"] = self.predicted_accepted
            details["rejected_prediction_tokens"] = self.predicted_rejected
        if self.reasoning_tokens is not None:
            details["reasoning_tokens"] = self.reasoning_tokens
        if details:
            counts["completion_tokens_details"] = details
        return counts

    def speculative(self) -> Json:
        """How drafting went. The acceptance length is tokens per step, 1.0 without drafting."""
        length = self.decode_tokens / self.steps if self.steps else 0.0
        return {
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_length": round(length, 4),
        }


def running_usage(prompt_tokens: int, completion_tokens: int) -> Json:
    """The counts while an answer is under way."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class ChunkWriter:
    """Writes the chunks of one stream.

    Args:
        frame: of the answer.
        request: what was asked to be reported.
        prompt_tokens: of all prompts together.
    """

    def __init__(self, frame: Frame, request: TextRequest, prompt_tokens: int) -> None:
        self._head = frame.chunk_head()
        self._request, self._prompt_tokens, self._tokens = request, prompt_tokens, 0
        # The last chunk alone has the counts; the others say that they have none.
        self._no_usage = ',"usage":null' if request.wants_usage else ""

    def count(self, event: StreamEvent) -> None:
        """Note an event's tokens, for the running counts."""
        self._tokens += len(event.token_ids)

    def chunk(self, choice: str, extra: Json | None = None) -> str:
        """One event of the stream.

        Args:
            choice: JSON text of its one choice.
            extra: fields of ours.
        """
        usage = self._no_usage
        if self._request.wants_running_usage:
            usage = ',"usage":' + to_json(running_usage(self._prompt_tokens, self._tokens))
        return f"{self._head}[{choice}]{usage}{_joined(extra)}}}\n\n"

    def pieces(self, event: StreamEvent) -> Json | None:
        """Which text of an event came from the drafter, where that was asked for."""
        if not self._request.wants_pieces:
            return None
        return {
            "speculative": {"pieces": [{"text": one.text, "drafted": one.drafted} for one in event.pieces]}
        }

    def last(self, tally: Tally, extra: Json) -> str:
        """The chunk with the counts."""
        usage = to_json(tally.usage(self._request.prediction is not None))
        return f'{self._head}[],"usage":{usage}{_joined(extra)}}}\n\n'


def _joined(extra: Json | None) -> str:
    return "," + to_json(extra)[1:-1] if extra else ""
