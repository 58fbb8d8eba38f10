"""`RowRules`: what a request does to its logit rows before temperature and cuts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftproof.errors import RequestError
from draftproof.sampling.counts import TokenCounts
from draftproof.sampling.grammar import Grammar, GrammarFailure, GrammarState
from draftproof.sampling.masks import FixedMasks, block, pack
from draftproof.sampling.resolved import ResolvedSampling


@dataclass(frozen=True)
class Adjusted:
    """Rows ready for verification.

    Attributes:
        logits: float32 ``[1 + drafts, vocab]``, penalised and masked.
        drafts: how many of the draft tokens, from the first, are worth verifying.
    """

    logits: torch.Tensor
    drafts: int


class RowRules:
    """Penalties, biases and masks of one output sequence.

    Row t of a step is treated by what would be committed on its path: the output so far and the drafts before it, never by
    later ones. So a row's bits are the same with any drafts after it or none, which makes drafting invisible in the output.

    State is what was committed, and changes in `advance` alone; `apply` may be called any number of times, or its result
    thrown away.
    """

    def __init__(
        self,
        sampling: ResolvedSampling,
        prompt_token_ids: Iterable[int],
        end_token_ids: frozenset[int],
        grammar: Grammar | None,
        vocab_size: int,
    ) -> None:
        self._vocab_size = vocab_size
        self._ends = frozenset(i for i in end_token_ids | sampling.stop_token_ids if i < vocab_size)
        self._position = 0  # of the next output token
        self._counts = TokenCounts(sampling, prompt_token_ids) if TokenCounts.wanted(sampling) else None
        self._bias = sampling.logit_bias
        self._masks = FixedMasks(sampling, self._ends, vocab_size)
        self._grammar = grammar.new_state() if grammar else None
        # Where the grammar is complete, the request's own stop tokens may come as well as the model's end tokens.
        self._end_words = _packed_ids(self._ends | (grammar.end_token_ids if grammar else set()), vocab_size)

    @staticmethod
    def of(
        sampling: ResolvedSampling,
        prompt_token_ids: Iterable[int],
        end_token_ids: frozenset[int],
        grammar: Grammar | None,
        vocab_size: int,
    ) -> RowRules | None:
        """The rules of a request's output, or None when it has none.

        Args:
            sampling: the request's.
            prompt_token_ids: of the prompt alone; output there already goes to `advance`.
            end_token_ids: tokens that end the output.
            grammar: the compiled `structured_outputs`.
            vocab_size: columns of the logit rows.

        Raises:
            RequestError: DP448, `min_tokens` leaves no token to choose.
        """
        restricts = (
            grammar is not None
            or TokenCounts.wanted(sampling)
            or bool(sampling.logit_bias)
            or sampling.allowed_token_ids is not None
            or bool(sampling.banned_token_ids)
            or sampling.min_tokens > 0
        )
        if not restricts:
            return None
        return RowRules(sampling, prompt_token_ids, end_token_ids, grammar, vocab_size)

    @property
    def is_exhausted(self) -> bool:
        """Whether there is a grammar, it is complete, and nothing but an end token can follow."""
        return self._grammar is not None and self._grammar.is_exhausted

    def advance(self, tokens: Sequence[int]) -> None:
        """Take in tokens that were committed."""
        self._position += len(tokens)
        if self._counts:
            self._counts.add(tokens)
        if self._grammar:
            self._advance_grammar(self._grammar, tokens)

    def _advance_grammar(self, state: GrammarState, tokens: Sequence[int]) -> None:
        for token in tokens:
            try:
                taken = state.take(token)
            except GrammarFailure:
                return  # the state keeps the failure, and the next `apply` tells the user
            if not taken and token not in self._ends:
                raise RuntimeError(f"token {token} was committed though the grammar refuses it")

    def apply(self, logits: torch.Tensor, drafts: Sequence[int]) -> Adjusted:
        """Penalise, bias and mask the rows of one step.

        Args:
            logits: raw ``[1 + len(drafts), vocab]``, any floating dtype; not changed.
            drafts: draft tokens; row t comes after ``drafts[:t]``.

        Returns:
            The rows worth verifying: those up to the first draft that is an end token or that the grammar refuses.

        Raises:
            RequestError: DP448, the rules leave no token to choose at the next position; DP447, the grammar's parser
                reached a limit there.
        """
        drafts = self._before_end(drafts)
        words = self._grammar_masks(self._grammar, drafts) if self._grammar else None
        count = len(words) if words is not None else 1 + len(drafts)
        rows = logits[:count].to(torch.float32, copy=True)
        if self._counts:
            self._counts.penalise(rows, drafts[: count - 1])
        if self._bias:
            self._add_bias(rows)
        if words is not None:
            block(rows, words)
        else:
            self._masks.block(rows, self._position)
        return Adjusted(rows, count - 1)

    def _before_end(self, drafts: Sequence[int]) -> Sequence[int]:
        ends = (index for index, token in enumerate(drafts) if token in self._ends)
        return drafts[: next(ends, len(drafts))]

    def _add_bias(self, rows: torch.Tensor) -> None:
        ids = torch.tensor([token for token, _ in self._bias], device=rows.device)
        values = torch.tensor([value for _, value in self._bias], dtype=torch.float32, device=rows.device)
        rows[:, ids] += values

    def _grammar_masks(self, state: GrammarState, drafts: Sequence[int]) -> np.ndarray:
        """Packed masks of the rows worth verifying, the fixed masks worked in."""
        start = state.length
        masks = [self._next_words(state, 0)]
        if not masks[0].any():
            raise self._no_token_left(state)
        try:
            for index, token in enumerate(drafts, start=1):
                if not state.take(token):
                    break
                words = self._next_words(state, index)
                if not words.any():
                    break
                masks.append(words)
        except RequestError:
            pass  # a limit of the parser: the rows before it stand
        finally:
            state.roll_back(start)
        return np.stack(masks)

    def _next_words(self, state: GrammarState, index: int) -> np.ndarray:
        try:
            words = state.mask()
        except GrammarFailure as failure:
            raise RequestError("DP447", f"following the grammar failed: {failure}") from failure
        words = words[: len(self._end_words)]
        if state.is_complete:
            words = words | self._end_words
        return words & self._masks.words(self._position + index)

    def _no_token_left(self, state: GrammarState) -> RequestError:
        where = f"at output token {self._position}"
        if state.is_complete and self._position < self._masks.min_tokens:
            why = f"the grammar is complete, and min_tokens={self._masks.min_tokens} allows no end token yet"
        elif state.is_complete or state.mask().any():
            why = "what the grammar needs there, allowed_token_ids or banned_token_ids forbid"
        else:
            why = "no token of this model fits the grammar there"
        return RequestError("DP448", f"no token is left to choose {where}: {why}")


def _packed_ids(token_ids: Iterable[int], vocab_size: int) -> np.ndarray:
    flags = np.zeros(vocab_size, bool)
    flags[[i for i in token_ids if i < vocab_size]] = True
    return pack(flags)
