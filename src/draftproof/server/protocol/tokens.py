"""`/tokenize` and `/detokenize`, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from draftproof.server.protocol.types import Body

MAX_DETOKENIZED = 1_000_000
"""Most token ids to turn into text at once."""


class TokenizeRequest(Body):
    """The body of `/tokenize`: a prompt or messages.

    Attributes:
        model: a served name; None: the one there is.
        prompt: a text.
        messages: a conversation, instead.
        add_special_tokens: whether a prompt gets the tokenizer's begin token (as a rule it does); messages have theirs from
            the template.
        add_generation_prompt, continue_final_message, chat_template_kwargs, tools: as for `/v1/chat/completions`.
        return_token_strs: give each token's text, too.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "object"}})] = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "object"}})] = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """The body of `/detokenize`.

    Attributes:
        model: a served name; None: the one there is.
        tokens: ids.
    """

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]] = Field(max_length=MAX_DETOKENIZED)
