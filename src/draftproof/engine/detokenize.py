"""Token ids to text, one token at a time, at constant cost a token.

Text can't simply be decoded token by token: a character may be spread over several tokens, and many decoders
treat the first token of a sequence unlike the rest (SentencePiece drops its leading space). So the last few
tokens are decoded again together with the new one, and what comes on top of the text already given is new.

Two kinds of token need care:

- Byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM2). A token may end inside a UTF-8 sequence; the
  decoder shows that as one U+FFFD at the very end. Only this last one is uncertain, and only this one is held
  back.
- Byte-fallback tokens (``<0x0A>`` in SentencePiece vocabularies). The decoder turns a *whole* run of them
  into U+FFFD, one a byte, when any of it is malformed, even characters that were complete. Waiting for the
  end of the run would delay every newline of such a model by a token, so a character is given once its bytes
  are complete, and stays.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tokenizers.decoders import ByteLevel

REPLACEMENT = "\ufffd"

_CONTEXT_TOKENS = 4
"""Tokens decoded again as context: an unfinished UTF-8 sequence is at most 3 bytes long, hence 3 tokens."""
_WINDOW_TOKENS = 12
"""Length at which the window is cut back to `_CONTEXT_TOKENS`; in between, no second decoding is needed."""


class Tokenizer(Protocol):
    """The part of a Transformers tokenizer used here."""

    added_tokens_decoder: Any
    all_special_ids: Any

    def decode(self, token_ids: Any, **options: bool) -> Any: ...
    def convert_ids_to_tokens(self, ids: Any) -> Any: ...
    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...


@dataclass(frozen=True)
class TokenKinds:
    """Which tokens of a vocabulary are special, and which stand for a single byte. Read once a tokenizer.

    Attributes:
        special: ids that leave no text when special tokens are skipped.
        byte_values: byte-fallback token id -> the byte; empty where the decoder has no byte fallback.
        joins: whether the text of tokens is that of their bytes side by side, as in byte-level vocabularies: what a token
            of whole characters adds then depends on no other.
        alone: for such a decoder, the text of tokens met so far, with special tokens left in: "" where a token leaves no
            text, None where it is not made of whole characters. Filled as they come; never more than the vocabulary.
    """

    special: frozenset[int]
    byte_values: Mapping[int, int]
    joins: bool = False
    alone: dict[int, str | None] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenKinds:
        """Read the kinds off a Transformers tokenizer, fast or slow."""
        special = set(tokenizer.all_special_ids)
        special.update(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        # Some ids, such as an unknown token without the flag, are listed as special and decoded all the same.
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        skipped = frozenset(i for i in special if tokenizer.decode([i], **options) == "")
        return cls(skipped, _byte_fallback_tokens(tokenizer), _is_byte_level(tokenizer))


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether decoding is tokenizers' byte-level decoder and nothing else."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return type(getattr(backend, "decoder", None)) is ByteLevel


def _byte_fallback_tokens(tokenizer: Tokenizer) -> dict[int, int]:
    names = [f"<0x{value:02X}>" for value in range(256)]
    ids = tokenizer.convert_tokens_to_ids(names)
    found = {i: value for value, i in enumerate(ids) if i is not None}
    names_back = tokenizer.convert_ids_to_tokens(list(found))
    found = {
        i: value for (i, value), name in zip(found.items(), names_back, strict=True) if name == names[value]
    }
    # A vocabulary may hold such strings without its decoder reading them as bytes.
    letter = next((i for i, value in found.items() if value == ord("A")), None)
    is_fallback = letter is not None and tokenizer.decode([letter], clean_up_tokenization_spaces=False) == "A"
    return found if is_fallback else {}


class IncrementalDetokenizer:
    """The text of one output, as it grows.

    The text of all pushes and of `finish`, joined, is what ``decode(prompt + output)`` has beyond
    ``decode(prompt)``, with `skip_special_tokens` as given and `clean_up_tokenization_spaces` off, as in vLLM
    (the clean-up changes text already given, and eats spaces of code). A character the prompt left unfinished
    belongs to the output iff the output completes it. One exception: in a run of byte-fallback tokens that
    turns malformed, characters completed before that stay, where `decode` would replace them.

    Text once given is never taken back, and does not depend on how the tokens were grouped into pushes.

    Args:
        tokenizer: a Transformers tokenizer.
        prompt_token_ids: the prompt; only its end is looked at.
        skip_special_tokens: leave special tokens out of the text.
        kinds: ``TokenKinds.of(tokenizer)``, where the caller keeps it; read off the tokenizer otherwise.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        *,
        kinds: TokenKinds | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._kinds = TokenKinds.of(tokenizer) if kinds is None else kinds
        self._skip_special = skip_special_tokens
        self._run = _ByteRun()
        # With byte-fallback tokens in the vocabulary, the other tokens are made of whole characters.
        self._window = _Window(self._decode, may_end_unfinished=not self._kinds.byte_values)
        self._read_prompt(prompt_token_ids)

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens make certain, possibly empty."""
        return "".join(map(self.push_one, token_ids))

    def push_one(self, token_id: int) -> str:
        """The text that this token makes certain, possibly empty."""
        if self._kinds.joins and self._window.is_whole:
            alone = self._text_alone(token_id)
            if alone is not None:
                if alone:
                    self._window.add_whole(token_id)
                return alone
        if not self._leaves_text(token_id):
            return ""
        value = self._kinds.byte_values.get(token_id)
        if value is not None:
            return self._push_byte(token_id, value)
        return self._run.end() + self._window.push(token_id)

    def finish(self) -> str:
        """The text held back until now: U+FFFD for a character left unfinished. Empty when called again."""
        return self._run.end() + self._window.finish()

    def _text_alone(self, token_id: int) -> str | None:
        """See `TokenKinds.alone`."""
        if self._skip_special and token_id in self._kinds.special:
            return ""
        known = self._kinds.alone
        if token_id in known:
            return known[token_id]
        text: str | None = ""
        if self._tokenizer.convert_ids_to_tokens(token_id) is not None:
            options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
            text = self._tokenizer.decode([token_id], **options)
            if not text or REPLACEMENT in text:
                text = None
        known[token_id] = text
        return text

    def _push_byte(self, token_id: int, value: int) -> str:
        text = self._run.push(value)
        if text == " " and self._window.is_empty:
            text = self._decode([token_id])  # a decoder may drop the space that begins a sequence
        # The run is decoded here, not in the window; to what follows it, its last token is context enough.
        self._window.restart_after(token_id)
        return text

    def _read_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        context: list[int] = []
        run: list[int] = []
        for token_id in reversed(prompt_token_ids):
            if not self._leaves_text(token_id):
                continue
            value = self._kinds.byte_values.get(token_id)
            if value is not None and len(run) == len(context):  # still in the run at the very end
                run.append(value)
            elif len(context) >= _CONTEXT_TOKENS:
                break
            context.append(token_id)
        for value in reversed(run):
            self._run.push(value)
        self._run.disown()
        self._window.start(context[:_CONTEXT_TOKENS][::-1])

    def _leaves_text(self, token_id: int) -> bool:
        if self._skip_special and token_id in self._kinds.special:
            return False
        # A model's vocabulary may be padded beyond its tokenizer's; such ids decode to nothing.
        return self._tokenizer.convert_ids_to_tokens(token_id) is not None

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=self._skip_special, clean_up_tokenization_spaces=False
        )


class _Window:
    """The last tokens of a sequence, decoded together with each new one. Every token in it leaves text."""

    def __init__(self, decode: Callable[[list[int]], str], *, may_end_unfinished: bool) -> None:
        self._decode = decode
        self._may_end_unfinished = may_end_unfinished
        self._tokens: list[int] = []
        self._given: int | None = 0  # characters of decode(tokens) that are old; None: all of them
        self._prompt_fragment = False  # whether the next character was begun by the prompt
        self._ends_whole = True  # whether nothing is held back

    @property
    def is_whole(self) -> bool:
        """Whether all text so far has been given, and it ends with a whole character."""
        return self._given is None or (self._ends_whole and not self._prompt_fragment)

    def add_whole(self, token_id: int) -> None:
        """Add a token of whole characters whose text is given elsewhere. Only where `is_whole`."""
        self._tokens.append(token_id)
        self._given = None
        if len(self._tokens) >= _WINDOW_TOKENS:
            self._tokens = self._tokens[-_CONTEXT_TOKENS:]

    @property
    def is_empty(self) -> bool:
        """Whether nothing that leaves text came before."""
        return not self._tokens

    def start(self, prompt_end: list[int]) -> None:
        """Begin after the prompt, of which these tokens are the end."""
        self._rebase(prompt_end)
        self._prompt_fragment = self._given != len(self._decode(self._tokens))

    def restart_after(self, token_id: int) -> None:
        """Begin after a token whose text was taken care of elsewhere."""
        self._tokens = [token_id]
        self._given = None

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now certain."""
        if self._given is None:
            self._given = len(self._decode(self._tokens))
        self._tokens.append(token_id)
        full = self._decode(self._tokens)
        text = self._take(full, self._certain(full))
        if len(self._tokens) >= _WINDOW_TOKENS:
            self._rebase(self._tokens[-_CONTEXT_TOKENS:])
        return text

    def finish(self) -> str:
        """The rest, certain or not."""
        if self._given is None:
            return ""
        full = self._decode(self._tokens)
        return self._take(full, len(full))

    def _rebase(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._given = self._certain(self._decode(tokens))

    def _certain(self, full: str) -> int:
        unfinished = self._may_end_unfinished and full.endswith(REPLACEMENT)
        self._ends_whole = not unfinished
        return len(full) - unfinished

    def _take(self, full: str, end: int) -> str:
        text = full[self._given : end]
        self._given = end
        if text and self._prompt_fragment:
            self._prompt_fragment = False
            text = text.removeprefix(REPLACEMENT)  # never completed: the prompt's own
        return text


class _ByteRun:
    """A run of byte-fallback tokens, decoded as it grows."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._waiting = 0  # bytes of the unfinished character
        self._of_prompt = 0  # how many of them are the prompt's
        self._malformed = False

    def push(self, value: int) -> str:
        """Add a byte; return the text that is now certain."""
        self._waiting += 1
        if not self._malformed:
            try:
                text = self._decoder.decode(bytes((value,)))
            except UnicodeDecodeError:
                self._malformed = True  # and stays so until the run ends, as decoders have it
            else:
                if text:
                    self._waiting = self._of_prompt = 0
                return text
        return self._give_up()

    def end(self) -> str:
        """Another kind of token, or the end: U+FFFD for every byte of an unfinished character."""
        self._decoder.reset()
        self._malformed = False
        return self._give_up()

    def disown(self) -> None:
        """All bytes so far are the prompt's: no U+FFFD will be given for them."""
        self._of_prompt = self._waiting

    def _give_up(self) -> str:
        text = REPLACEMENT * (self._waiting - self._of_prompt)
        self._waiting = self._of_prompt = 0
        return text
