"""A drafter that knows the answer and errs on purpose: it makes blocks of every accepted length happen."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.models.drafters.base import DraftProposal, DraftRequest


class ScriptedDrafter:
    """Proposes the continuation it was given, wrong at every `period`-th position of the output.

    Args:
        scripts: prompt -> the output that drafting-free decoding gives.
        period: an error at output positions ``period - 1, 2 * period - 1, ...``; 0 for none.
        max_draft_tokens: the most per proposal.
    """

    name = "scripted"
    tap_layer_ids: tuple[int, ...] = ()

    def __init__(self, scripts: dict[tuple[int, ...], list[int]], period: int, max_draft_tokens: int) -> None:
        self.scripts, self.period, self.max_draft_tokens = scripts, period, max_draft_tokens

    def new_state(self) -> dict[str, int]:
        return {"seen": 0}

    def extend(self, state: dict[str, int], features: torch.Tensor | None, start: int) -> None:
        assert features is None

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
