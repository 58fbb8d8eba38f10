"""The bytes each token of a vocabulary brings to a text, as log-probabilities in OpenAI's form show them."""

from __future__ import annotations

from typing import Any

from draftproof.engine.detokenize import TokenKinds


def decode_tokens(tokenizer: Any, token_ids: Any, skip_special_tokens: bool) -> str:
    """The text of tokens, blanks before punctuation left as they are. Ids beyond the tokenizer's leave no text."""
    return str(
        tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
    )


class TokenBytes:
    """Bytes of single tokens, remembered as they are asked for.

    Args:
        tokenizer: a Transformers tokenizer.
        kinds: of its tokens.
    """

    def __init__(self, tokenizer: Any, kinds: TokenKinds) -> None:
        self._tokenizer, self._kinds = tokenizer, kinds
        self._added = {i: str(token.content) for i, token in tokenizer.added_tokens_decoder.items()}
        self._byte_of = _byte_level_alphabet() if kinds.joins else {}
        self._known: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """The token's bytes: cut UTF-8 where it is part of a character; of a special token its name; none for an unknown id."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._find(token_id)
        return known

    def _find(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        value = self._kinds.byte_values.get(token_id)
        if value is not None:
            return bytes([value])
        name = self._tokenizer.convert_ids_to_tokens(token_id)
        if name is None:
            return b""
        if self._byte_of and all(letter in self._byte_of for letter in name):
            return bytes(self._byte_of[letter] for letter in name)
        # SentencePiece writes a blank as a low line of its own.
        return str(name).replace("\u2581", " ").encode("utf-8", "replace")


def _byte_level_alphabet() -> dict[str, int]:
    """The letter that stands for each byte in byte-level vocabularies: printable Latin-1 for itself, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in set(printable)]
    return {chr(value): value for value in printable} | {chr(256 + i): v for i, v in enumerate(others)}
