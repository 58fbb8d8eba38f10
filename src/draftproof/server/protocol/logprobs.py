"""Log-probabilities in three shapes: OpenAI's chat, OpenAI's completions, vLLM's `prompt_logprobs`."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from draftproof.sampling import TokenLogprobs

TokenBytes = Callable[[int], bytes]
"""The bytes that a token stands for: part of a character in some."""
Json = dict[str, Any]

LEAST = -9999.0
"""Stands for minus infinity, which JSON has not; the same number as OpenAI's and vLLM's."""


def chat_logprobs(entries: Sequence[TokenLogprobs], top: int, token_bytes: TokenBytes) -> Json:
    """The `logprobs` of a chat choice or chunk.

    Args:
        entries: one a token.
        top: how many of the likeliest to list.
        token_bytes: see `TokenBytes`.
    """
    return {
        "content": [
            {
                **_chat_token(entry.token_id, entry.logprob, token_bytes),
                "top_logprobs": [_chat_token(*pair, token_bytes) for pair in entry.top[:top]],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_token(token_id: int, logprob: float, token_bytes: TokenBytes) -> Json:
    raw = token_bytes(token_id)
    return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LEAST), "bytes": list(raw)}


class CompletionLogprobs:
    """The `logprobs` of a completion choice, which grow with its text: `text_offset` counts on from chunk to chunk.

    Args:
        top: how many of the likeliest to list; the token that came is listed in any case.
        token_bytes: see `TokenBytes`.
    """

    def __init__(self, top: int, token_bytes: TokenBytes) -> None:
        self._top, self._bytes = top, token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def take(self, entries: Sequence[TokenLogprobs | None], first: int | None = None) -> Json:
        """The next tokens.

        Args:
            entries: one a token; None for the first token of a prompt, which nothing predicts.
            first: that token.
        """
        shown: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            token_id = first if entry is None else entry.token_id
            assert token_id is not None
            shown["tokens"].append(self._text(token_id))
            shown["token_logprobs"].append(None if entry is None else max(entry.logprob, LEAST))
            shown["top_logprobs"].append(None if entry is None else self._likeliest(entry))
            shown["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(self._bytes(token_id)))
        return shown

    def _likeliest(self, entry: TokenLogprobs) -> dict[str, float]:
        likeliest: dict[str, float] = {}
        for token_id, logprob in (*entry.top[: self._top], (entry.token_id, entry.logprob)):
            likeliest.setdefault(self._text(token_id), max(logprob, LEAST))
        return likeliest

    def _text(self, token_id: int) -> str:
        """The token's text; of part of a character the bytes, as OpenAI writes them."""
        raw = self._bytes(token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def prompt_logprobs(
    entries: Sequence[TokenLogprobs | None] | None, top: int, token_bytes: TokenBytes
) -> list[Json | None]:
    """vLLM's `prompt_logprobs`: for every prompt token but the first a table by token id."""
    return [None if entry is None else _by_id(entry, top, token_bytes) for entry in entries or ()]


def _by_id(entry: TokenLogprobs, top: int, token_bytes: TokenBytes) -> Json:
    table = {str(entry.token_id): _ranked(entry.token_id, entry.logprob, entry.rank, token_bytes)}
    for rank, (token_id, logprob) in enumerate(entry.top[:top], start=1):
        table[str(token_id)] = _ranked(token_id, logprob, rank, token_bytes)
    return table


def _ranked(token_id: int, logprob: float, rank: int, token_bytes: TokenBytes) -> Json:
    return {
        "logprob": max(logprob, LEAST),
        "rank": rank,
        "decoded_token": token_bytes(token_id).decode("utf-8", "replace"),
    }
