"""`/v1/completions`: text goes on from a prompt."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from draftproof.errors import ServerError
from draftproof.server.protocol.common import MAX_LOGPROBS, TextRequest
from draftproof.server.protocol.types import Prompts


class CompletionRequest(TextRequest):
    """The body of `/v1/completions`.

    Attributes:
        prompt: a text, token ids, or a list of either.
        echo: put the prompt before the output.
        logprobs: how many of the likeliest tokens to report beside each token of the text.
        add_special_tokens: whether a text gets the tokenizer's begin token; true as a rule.
    """

    prompt: Prompts
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool | None = None


def listed_prompts(prompt: object) -> list[str | list[int]]:
    """The prompts of a request, one or many.

    Raises:
        ServerError: DP631, neither a text nor token ids nor a list of either.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise _bad("prompt", "a text, a list of token ids, or a list of such prompts, and not empty", prompt)
    if all(type(item) is int for item in prompt):
        return [prompt]
    prompts: list[str | list[int]] = []
    for index, item in enumerate(prompt):
        if not isinstance(item, str) and not _is_ids(item):
            raise _bad(f"prompt.{index}", "a text or a list of token ids", item)
        prompts.append(item)
    return prompts


def _is_ids(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(type(part) is int for part in item)


def _bad(param: str, expected: str, value: object) -> ServerError:
    return ServerError("DP631", f"{param} must be {expected}, got {type(value).__name__}", param)
