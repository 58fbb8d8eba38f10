"""A drafter that knows the answer and errs on purpose: it makes blocks of every accepted length happen."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.models.drafters.base import ContextUpdate, DraftProposal, DraftRequest


class ScriptedDrafter:
    """Proposes the continuation it was given, wrong at every `period`-th position of the output.

    Args:
        scripts: prompt -> the output that drafting-free decoding gives.
        period: an error at output positions ``period - 1, 2 * period - 1, ...``; 0 for none.
        max_draft_tokens: the most per proposal.
    """

    name = "scripted"
    tap_layer_ids: tuple[int, ...] = ()
    page_bytes = 0

    def __init__(self, scripts: dict[tuple[int, ...], list[int]], period: int, max_draft_tokens: int) -> None:
        self.scripts, self.period, self.max_draft_tokens = scripts, period, max_draft_tokens

    def new_pages(self, num_pages: int) -> None:
        return None

    def copy_page(self, pages: None, source: int, destination: int) -> None:
        assert pages is None

    def new_state(
        self, pages: None = None, table: list[int] | None = None, length: int = 0
    ) -> dict[str, int]:
        assert pages is None
        return {"seen": length}

    def extend(self, updates: Sequence[ContextUpdate]) -> None:
        assert all(update.features is None for update in updates)

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        return [DraftProposal(self._tokens(request)) for request in requests]

    def _tokens(self, request: DraftRequest) -> torch.Tensor:
        prompt = tuple(request.tokens[: len(request.tokens) - request.output_position])
        at = request.output_position
        tokens = []
        for index, token in enumerate(self.scripts[prompt][at : at + request.num_draft_tokens], start=at):
            wrong = self.period and (index + 1) % self.period == 0
            tokens.append(token + 1 if wrong and token < 10 else token - 1 if wrong else token)
        return torch.tensor(tokens, dtype=torch.long)
