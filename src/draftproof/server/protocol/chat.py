"""`/v1/chat/completions`: the body."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from draftproof.server.protocol.common import MAX_LOGPROBS, TextRequest
from draftproof.server.protocol.types import Positive

_OBJECTS = {"type": "array", "items": {"type": "object"}}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {"anyOf": [{"type": "string"}, _OBJECTS, {"type": "null"}]},
        },
        "required": ["role"],
    },
}


class ChatRequest(TextRequest):
    """The body of `/v1/chat/completions`.

    Attributes:
        messages: the conversation; see `messages.checked_messages`.
        max_completion_tokens: OpenAI's newer name of `max_tokens`; the rest of the context when neither is given.
        logprobs: whether to report log-probabilities.
        top_logprobs: how many of the likeliest tokens beside each (needs `logprobs`).
        tools, tool_choice, parallel_tool_calls: functions that the model may call.
        chat_template_kwargs: variables for the model's template, e.g. ``{"enable_thinking": false}``.
        add_generation_prompt: open the assistant's turn; true as a rule.
        continue_final_message: go on with the last message instead of answering it.
        reasoning_effort: given to the template; ``"none"`` also turns its `enable_thinking` off.
        modalities: ``["text"]``.
    """

    messages: Annotated[Any, WithJsonSchema(_MESSAGES)]
    max_completion_tokens: Positive = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: Annotated[Any, WithJsonSchema(_OBJECTS)] = None
    tool_choice: Annotated[
        Any, WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]})
    ] = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    modalities: list[Literal["text"]] | None = None
