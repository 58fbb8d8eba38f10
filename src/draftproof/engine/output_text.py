"""The text of one output: tokens in, text that may be shown out, and the word when a stop string ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.engine.detokenize import IncrementalDetokenizer, Tokenizer, TokenKinds
from draftproof.engine.stops import StopMatcher


@dataclass(frozen=True)
class Step:
    """What one token did.

    Attributes:
        text: text that may be shown now; never taken back.
        stopped: whether this token completed a stop string; it is the last one of the output.
    """

    text: str
    stopped: bool


class OutputText:
    """Detokeniser and stop strings in one, fed token by token.

    Generation ends with the first token whose text completes a stop string. Since every token is a step of
    its own, text and end do not depend on how many tokens were committed together.

    Args:
        tokenizer: a Transformers tokenizer.
        prompt_token_ids: the prompt; only its end is looked at.
        stop: stop strings, none empty.
        include_stop_str_in_output: keep the stop string, or the text of the end token, in the text.
        skip_special_tokens: leave special tokens out of the text.
        kinds: ``TokenKinds.of(tokenizer)``, where the caller keeps it.
        min_tokens: before the token of this number (the first is 1) no stop string is looked for.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        kinds: TokenKinds | None = None,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_token_ids, skip_special_tokens, kinds=kinds
        )
        self._matcher = StopMatcher(stop, include_stop_str_in_output)
        self._shows_end_token = include_stop_str_in_output
        self._shown: list[str] = []
        self._pushed, self._min_tokens = 0, min_tokens

    @property
    def text(self) -> str:
        """All text shown so far."""
        return "".join(self._shown)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the output, or None."""
        return self._matcher.stop_string

    def push(self, token_id: int, *, is_end_token: bool = False) -> Step:
        """`take`, and whether the output ended with it."""
        text = self.take(token_id, is_end_token)
        return Step(text, self.stop_string is not None)

    def take(self, token_id: int, is_end_token: bool = False) -> str:
        """Take in the next token of the output; returns the text that may be shown now.

        Args:
            token_id: the token.
            is_end_token: whether it ends the output (see `stops.finish_reason`). Such a token leaves no text,
                be it special or not, unless `include_stop_str_in_output`.

        Raises:
            RuntimeError: a stop string has already ended the output.
        """
        if self.stop_string is not None:
            raise RuntimeError("a token was pushed after a stop string ended the output")
        self._pushed += 1
        if is_end_token and not self._shows_end_token:
            return ""
        return self._show(self._detokenizer.push_one(token_id))

    def finish(self) -> str:
        """The output ends here: text held back until now (U+FFFD for an unfinished character)."""
        if self.stop_string is not None:
            return ""
        text = self._show(self._detokenizer.finish())
        if self.stop_string is None:
            rest = self._matcher.flush()
            self._shown.append(rest)
            text += rest
        return text

    def release(self) -> str:
        """The output is broken off here: text that waited for the rest of a stop string. An unfinished character stays out."""
        if self.stop_string is not None:
            return ""
        rest = self._matcher.flush()
        self._shown.append(rest)
        return rest

    def _show(self, new_text: str) -> str:
        text = self._matcher.push(new_text) if self._pushed >= self._min_tokens else new_text
        self._shown.append(text)
        return text
