"""Prompt lookup: propose what followed the last time the text ended as it does now. Needs no model.

Source: Saxena 2023, "Prompt lookup decoding"; here with an index that grows with the text, so that a step
costs the tokens it added and not the whole history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draftproof.errors import DrafterError
from draftproof.models.drafters.base import ContextUpdate, DraftProposal, DraftRequest


@dataclass
class NgramState:
    """One sequence's index.

    Attributes:
        ends: for each n-gram (min_n <= n <= max_n) of the text, the position after its latest occurrence that
            has a successor.
        indexed: n-grams ending at this position or before are in `ends`.
    """

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 0


class NgramDrafter:
    """What followed the latest earlier occurrence of the text's longest repeated suffix.

    Where the earlier occurrence runs into the end of the text, copying goes on with the tokens just proposed,
    so a text that repeats with a short period is continued over the full length.

    Args:
        device: where the target wants the proposals.
        block_size: anchor plus the most tokens to propose, >= 2.
        min_n, max_n: shortest and longest suffix looked up, ``1 <= min_n <= max_n``.
    """

    def __init__(self, device: torch.device, block_size: int = 8, min_n: int = 2, max_n: int = 4) -> None:
        if not 1 <= min_n <= max_n:
            raise ValueError(f"expected 1 <= min_n <= max_n, got min_n={min_n}, max_n={max_n}")
        self.name = "ngram"
        self.max_draft_tokens = block_size - 1
        self.tap_layer_ids: tuple[int, ...] = ()
        self.page_bytes = 0
        self._device, self._min_n, self._max_n = device, min_n, max_n

    def new_pages(self, num_pages: int) -> None:
        """None: it keeps nothing for a token but the index in its state."""

    def copy_page(self, pages: None, source: int, destination: int) -> None:
        """Nothing to do."""

    def new_state(self, pages: None = None, table: list[int] | None = None, length: int = 0) -> NgramState:
        """An empty index, whatever `length`: `propose` gets the whole text, and indexes what it has not seen yet."""
        return NgramState()

    def extend(self, updates: Sequence[ContextUpdate]) -> None:
        """Nothing to do: the text itself is all this drafter needs, and `propose` gets it."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        return [
            DraftProposal(torch.tensor(self._continue(r), dtype=torch.int64, device=self._device))
            for r in requests
        ]

    def _continue(self, request: DraftRequest) -> list[int]:
        tokens, state = request.tokens, request.state
        self._index(state, tokens)
        begin = self._lookup(state, tokens)
        if begin is None:
            return []
        period = len(tokens) - begin
        proposal: list[int] = []
        for offset in range(min(request.num_draft_tokens, self.max_draft_tokens)):
            proposal.append(int(tokens[begin + offset]) if offset < period else proposal[offset - period])
        return proposal

    def _index(self, state: NgramState, tokens: Sequence[int]) -> None:
        """Take in n-grams that gained a successor since the last call."""
        last = len(tokens) - 1
        if last < state.indexed:
            raise DrafterError(
                "DP316", f"the text shrank to {len(tokens)} tokens after {state.indexed + 1} were committed"
            )
        for end in range(state.indexed + 1, last + 1):
            for n in range(self._min_n, min(self._max_n, end) + 1):
                state.ends[tuple(tokens[end - n : end])] = end
        state.indexed = last

    def _lookup(self, state: NgramState, tokens: Sequence[int]) -> int | None:
        for n in range(min(self._max_n, len(tokens)), self._min_n - 1, -1):
            end = state.ends.get(tuple(tokens[-n:]))
            if end is not None:
                return end
        return None
