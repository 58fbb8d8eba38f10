"""From what a user passes as a prompt to checked token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch

from draftproof.engine.chat_options import ChatOptions
from draftproof.errors import RequestError

Prompt = str | Sequence[int]
"""A text, or its token ids."""
DEFAULT = ChatOptions()
Messages = Sequence[Mapping[str, Any]]
"""A conversation: ``{"role": ..., "content": ...}`` each."""


def as_prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list. A list of ints is one prompt of token ids.

    Raises:
        RequestError: DP404, neither.
    """
    if isinstance(prompts, str):
        return [prompts]
    listed = _as_list(prompts)
    if listed and all(_is_whole(item) for item in listed):
        return [listed]
    return listed


def encode_prompt(tokenizer: Any, prompt: Prompt, vocab_size: int, max_length: int) -> list[int]:
    """Token ids of a prompt, checked.

    Args:
        tokenizer: a Transformers tokenizer; adds its special tokens to a text, as `tokenizer(text)` does.
        prompt: text or token ids.
        vocab_size: of the target.
        max_length: most tokens the context holds; one place must be left for output.

    Raises:
        RequestError: DP401 empty, DP402 too long, DP403 id out of range, DP404 of another type.
    """
    if isinstance(prompt, str):
        token_ids = list(tokenizer(_encodable(prompt))["input_ids"])
    else:
        token_ids = [_token_id(item) for item in _as_list(prompt)]
    if not token_ids:
        raise RequestError("DP401", "the prompt is empty: expected at least one token, got none")
    for index, token in enumerate(token_ids):
        if not 0 <= token < vocab_size:
            raise RequestError(
                "DP403", f"prompt token ids must be in 0..{vocab_size - 1}, got {token} at index {index}"
            )
    if len(token_ids) >= max_length:
        raise RequestError(
            "DP402",
            f"the prompt has {len(token_ids)} tokens and the context holds {max_length}, output included: shorten the prompt",
        )
    return token_ids


def encode_chat(
    tokenizer: Any, messages: Messages, vocab_size: int, max_length: int, options: ChatOptions = DEFAULT
) -> list[int]:
    """Token ids of a conversation through the model's chat template.

    Args:
        tokenizer: a Transformers tokenizer with a chat template.
        messages: the conversation.
        vocab_size: of the target.
        max_length: most tokens the context holds.
        options: for the template.

    Raises:
        RequestError: DP405 no template, DP406 bad messages, and those of `encode_prompt`.
    """
    text = render_chat(tokenizer, messages, options)
    # The template has already placed the special tokens.
    token_ids = list(tokenizer(_encodable(text), add_special_tokens=False)["input_ids"])
    return encode_prompt(tokenizer, token_ids, vocab_size, max_length)


def render_chat(tokenizer: Any, messages: Messages, options: ChatOptions) -> str:
    """The text of a conversation, as the model's chat template has it, special tokens included.

    Raises:
        RequestError: DP405 no template, DP406 bad messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError("DP405", "this model has no chat template: use generate with a plain prompt")
    _check_messages(messages)
    try:
        text = tokenizer.apply_chat_template(
            [_plain(message) for message in messages],
            tools=[dict(tool) for tool in options.tools] if options.tools else None,
            tokenize=False,
            add_generation_prompt=options.add_generation_prompt and not options.continue_final_message,
            continue_final_message=options.continue_final_message,
            **dict(options.template_kwargs),
        )
    except RequestError:
        raise
    except Exception as error:  # a template raises what it likes for a conversation it refuses
        raise RequestError("DP406", f"the chat template refuses these messages: {error}") from error
    return str(text)


def _check_messages(messages: Messages) -> None:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("DP406", "messages must be a non-empty list of {'role': ..., 'content': ...}")
    for index, message in enumerate(messages):
        whole = (
            isinstance(message, Mapping)
            and "role" in message
            and ("content" in message or "tool_calls" in message)
        )
        if not whole:
            raise RequestError("DP406", f"messages[{index}] must have 'role' and 'content', got {message!r}")


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is a text: parts of type text are joined by newlines, as OpenAI-compatible servers do.

    Raises:
        RequestError: DP406, a part of another type.
    """
    content = message.get("content")
    if message.get("tool_calls"):
        message = {**message, "tool_calls": [_call(one) for one in message["tool_calls"]]}
    if isinstance(content, str) or content is None:
        return {**message, "content": content or ""}
    parts = content if isinstance(content, Sequence) else [content]
    for part in parts:
        if (
            not isinstance(part, Mapping)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            raise RequestError(
                "DP406", f"content must be a text or a list of parts of type 'text', got {part!r}"
            )
    return {**message, "content": "\n".join(part["text"] for part in parts)}


def _call(call: Any) -> Any:
    """A tool call whose arguments are an object: OpenAI's clients send them as JSON text, templates print them as JSON again."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise RequestError("DP406", f"a tool call must have a 'function', got {call!r}")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        read = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return call  # what the model really said; the template shows it as it is
    return {**call, "function": {**function, "arguments": read}} if isinstance(read, dict) else call


def _encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            "DP404",
            f"the prompt holds half a surrogate pair at character {error.start}, which is no text: decode it anew",
        ) from error
    return text


def _as_list(prompt: object) -> list[Any]:
    """A list, tuple, or 1-D array or tensor, as a list of Python objects."""
    if isinstance(prompt, (torch.Tensor, np.ndarray)):
        listed: object = prompt.tolist()
    else:
        listed = prompt
    if isinstance(listed, (str, bytes, bytearray)) or not isinstance(listed, Sequence):
        raise _bad_type(prompt)
    return list(listed)


def _is_whole(item: object) -> bool:
    return isinstance(item, Integral) and not isinstance(item, bool)


def _token_id(item: object) -> int:
    if not _is_whole(item):
        raise RequestError("DP404", f"a prompt of token ids must hold whole numbers, got {item!r}")
    return int(item)  # type: ignore[call-overload, no-any-return]


def _bad_type(prompt: object) -> RequestError:
    return RequestError(
        "DP404", f"a prompt must be a string or a list of token ids, got {type(prompt).__name__}"
    )
