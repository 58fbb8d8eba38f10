"""Grammars: from what the user asks for to the tokens that may come next.

llguidance does the parsing (xgrammar would be the other choice): its matcher refuses a token without harm, rolls back any
number of tokens, takes about a millisecond to build, and refuses JSON schema keywords that it does not enforce.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import llguidance
import numpy as np
from tokenizers import Tokenizer

from draftproof.errors import RequestError
from draftproof.sampling.structured import StructuredOutputs

_KEPT_GRAMMARS = 64
"""Compiled grammars kept for requests to come."""

_JSON_SPACE = r"[ \n\t]{1,20}"
"""Space between the parts of a JSON value. Bounded, for a small model may write spaces for ever where it may."""

_CODES = {
    "json": "DP445",
    "json_object": "DP445",
    "regex": "DP446",
    "grammar": "DP447",
    "choice": "DP444",
}


_STUCK = "NoExtension"
"""How the matcher's complaint begins when no token can go on."""

_END = "<|end of the grammar|>"

_PIECES_WITH_SPACES = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}
"""A decoder that llguidance knows, for tokens that a Metaspace decoder reads the same way."""


class GrammarFailure(Exception):  # noqa: N818 - not an error of the user's alone: the caller decides
    """The parser gave up: the grammar took more work than its limits allow."""


class GrammarState:
    """How far one output has come in a grammar. Get one by `Grammar.new_state`.

    End tokens are not part of a grammar: they may come where it is complete, and nothing but them comes after.
    """

    def __init__(
        self, pristine: llguidance.LLMatcher, end_token_ids: frozenset[int], num_tokens: int, end: int
    ) -> None:
        self._pristine = pristine
        self._matcher = pristine.deep_copy()
        self._ends = end_token_ids
        self._num_words = -(-num_tokens // 32)
        self._end_word, self._end_bit = end // 32, np.uint32(1 << end % 32)
        self._path: list[int] = []  # tokens taken, end tokens included
        self._ended_at: int | None = None  # length of the path before its first end token

    @property
    def length(self) -> int:
        """Tokens taken so far."""
        return len(self._path)

    @property
    def is_complete(self) -> bool:
        """Whether the output may end here."""
        return self._ended_at is not None or self._matcher.is_accepting()

    @property
    def is_exhausted(self) -> bool:
        """Whether the output is complete and nothing can follow."""
        return self._ended_at is not None or (self._matcher.is_stopped() and self._matcher.is_accepting())

    def mask(self) -> np.ndarray:
        """Tokens that may come next, end tokens not among them: packed uint32 words.

        Raises:
            GrammarFailure: the parser reached a limit.
        """
        words = np.zeros(self._num_words, np.uint32)
        self._raise_failure()  # it may have failed on a committed token
        if self._ended_at is not None or self._matcher.is_stopped():
            return words
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._raise_failure()
        words[self._end_word] &= ~self._end_bit
        if self._is_hollow(words):
            words[:] = 0
        return words

    @property
    def _is_stuck(self) -> bool:
        """Whether the grammar goes on but none of the tokens does. The matcher takes that for an error."""
        return self._matcher.get_error().startswith(_STUCK)

    def _is_hollow(self, words: np.ndarray) -> bool:
        """Whether the mask lets through one token that the matcher then refuses.

        Where the grammar leaves one text, the mask holds the first token of how the tokenizer spells that text; and a
        tokenizer that cannot spell it says so with its token for the unknown.
        """
        (places,) = words.nonzero()
        if len(places) != 1:
            return False
        bits = int(words[places[0]])
        alone = bits & (bits - 1) == 0
        token = int(places[0]) * 32 + bits.bit_length() - 1
        return alone and self._matcher.validate_tokens([token]) != 1

    def take(self, token: int) -> bool:
        """Go on by one token; False, and no change, if the grammar refuses it.

        Raises:
            GrammarFailure: the parser reached a limit.
        """
        if token in self._ends:
            if not self.is_complete:
                return False
            if self._ended_at is None:
                self._ended_at = len(self._path)
        elif self._ended_at is not None or self._matcher.try_consume_tokens([token]) != 1:
            self._raise_failure()
            return False
        self._path.append(token)
        return True

    def roll_back(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        taken = self._num_consumed
        del self._path[length:]
        if self._ended_at is not None and self._ended_at >= length:
            self._ended_at = None
        undone = taken - self._num_consumed
        if self._matcher.is_error() or (undone and not self._matcher.rollback(undone)):
            self._start_over()

    @property
    def _num_consumed(self) -> int:
        """Tokens that the matcher has taken: all before the first end token."""
        return len(self._path) if self._ended_at is None else self._ended_at

    def _start_over(self) -> None:
        # A matcher in error never leaves it.
        self._matcher = self._pristine.deep_copy()
        self._matcher.consume_tokens(
            self._path[: self._num_consumed]
        )  # should it fail, the next mask says so

    def _raise_failure(self) -> None:
        if self._matcher.is_error() and not self._is_stuck:
            raise GrammarFailure(_short(self._matcher.get_error()))


class Grammar:
    """A compiled grammar. Never changes; any number of outputs may follow it at once."""

    def __init__(
        self, matcher: llguidance.LLMatcher, end_token_ids: frozenset[int], num_tokens: int, end: int
    ) -> None:
        self._matcher = matcher
        self.end_token_ids = end_token_ids
        self._num_tokens = num_tokens
        self._end = end

    def new_state(self) -> GrammarState:
        """A state at the beginning of the output."""
        return GrammarState(self._matcher, self.end_token_ids, self._num_tokens, self._end)


class GrammarCompiler:
    """Compiles grammars for one model.

    Args:
        tokenizer: the model's fast Transformers tokenizer. Looked at when the first grammar comes.
        vocab_size: of the model: rows of its output, which may be more or less than the tokenizer has tokens.
        end_token_ids: the model's own end tokens.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, end_token_ids: Iterable[int]) -> None:
        self._hf_tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ends = frozenset(end_token_ids)
        self._tokenizer: tuple[llguidance.LLTokenizer, int] | None = None
        self._compiled: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        """The grammar of what a request wants; the same object for the same wish, while it is kept.

        Raises:
            RequestError: DP444 to DP447, the choice, schema, expression or grammar cannot be used, with the reason;
                DP449, the tokenizer cannot.
        """
        grammar = self._compiled.pop(wanted, None) or self._compile(wanted)
        self._compiled[wanted] = grammar
        if len(self._compiled) > _KEPT_GRAMMARS:
            self._compiled.popitem(last=False)
        return grammar

    def _compile(self, wanted: StructuredOutputs) -> Grammar:
        tokenizer, end = self._llguidance_tokenizer()
        try:
            matcher = llguidance.LLMatcher(tokenizer, _definition(wanted), log_level=0)
            fault = matcher.get_error()
        except ValueError as error:
            fault = str(error)
        if fault:
            raise _refusal(wanted, fault)
        grammar = Grammar(matcher, self._ends, tokenizer.vocab_size, end)
        _check_it_begins(wanted, grammar.new_state())
        return grammar

    def _llguidance_tokenizer(self) -> tuple[llguidance.LLTokenizer, int]:
        if self._tokenizer is None:
            self._tokenizer = _read_tokenizer(self._hf_tokenizer, self._vocab_size)
        return self._tokenizer


def _refusal(wanted: StructuredOutputs, fault: str) -> RequestError:
    kind = wanted.kind
    return RequestError(_CODES[kind], f"structured_outputs.{kind} cannot be used: {_short(fault)}")


def _check_it_begins(wanted: StructuredOutputs, state: GrammarState) -> None:
    """That there is a first token, or the empty output will do."""
    try:
        begins = state.is_complete or state.mask().any()
    except GrammarFailure as failure:
        raise _refusal(wanted, str(failure)) from failure
    if not begins:
        raise _refusal(wanted, "no text that this model's tokens can spell fits it")


def _read_tokenizer(tokenizer: Any, vocab_size: int) -> tuple[llguidance.LLTokenizer, int]:
    """llguidance's view of a tokenizer, and the id of the end token in it.

    That end token is one of ours, added to a copy, which no grammar and no model gives: where real end tokens may come is
    decided here, for requests have end tokens of their own.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise RequestError(
            "DP449", f"structured_outputs need a fast tokenizer, got {type(tokenizer).__name__}"
        )
    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copy.add_special_tokens([_END])
    content = json.loads(copy.to_str())
    decoder = content.get("decoder") or {}
    if decoder.get("type") == "Metaspace":
        content["decoder"] = _PIECES_WITH_SPACES
    end = int(copy.token_to_id(_END) or 0)
    try:
        return llguidance.LLTokenizer(
            json.dumps(content), n_vocab=max(vocab_size, end + 1), eos_token=end
        ), end
    except ValueError as error:
        raise RequestError(
            "DP449", f"structured_outputs cannot be used with this model's tokenizer: {_short(str(error))}"
        ) from error


def _definition(wanted: StructuredOutputs) -> str:
    """What the user wants in llguidance's own form. Raises `ValueError` where it cannot be read."""
    matcher = llguidance.LLMatcher
    if wanted.kind == "regex":
        return matcher.grammar_from_regex(wanted.regex or "")
    if wanted.kind == "grammar":
        return llguidance.grammar_from("grammar", wanted.grammar or "")
    if wanted.kind == "choice":
        strings = (json.dumps(choice, ensure_ascii=False) for choice in wanted.choice or ())
        # One terminal, so that the lexer's automaton carries thousands of choices and the parser one symbol.
        return matcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(strings))
    schema = wanted.json if wanted.kind == "json" else '{"type": "object"}'
    return matcher.grammar_from_json_schema(str(schema), overrides={"whitespace_pattern": _JSON_SPACE})


def _short(fault: str) -> str:
    """The parser's message on one line of at most 300 characters."""
    line = " ".join(fault.split("<state>")[0].replace("<non-verbose/>", "").split())
    return line if len(line) <= 300 else line[:297] + "..."
