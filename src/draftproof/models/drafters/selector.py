"""DFlash 2's candidate selector: rescores each slot's best tokens by what was chosen for the slot before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from draftproof.models.drafters.choice import Draw, candidate_noise, temperatures
from draftproof.models.drafters.dense import Linear


@dataclass(frozen=True)
class CandidateSelector:
    """Weights of the selector.

    Attributes:
        predecessors, successors: ``[vocab, rank]``.
        projection: ``[rows, hidden] -> [rows, rank]``.
        top_k: candidates considered per slot.
    """

    predecessors: torch.Tensor
    successors: torch.Tensor
    projection: Linear
    top_k: int

    def choose(
        self, hidden: torch.Tensor, logits: torch.Tensor, anchors: Sequence[int], draws: Sequence[Draw]
    ) -> torch.Tensor:
        """Choose one token a slot, left to right in each sequence, among the slot's `top_k` by unary logit.

        The score of candidate v after u at a slot with hidden state h is its logit plus
        ``<pred(u) * proj(h), succ(v)>`` (design section 4). Greedy takes the best score; above temperature 0
        the best of ``score / T + g``, g being the target's own Gumbel noise. Ties go to the lower token id.

        Args:
            hidden: ``[rows, hidden]``, mask slots only, sequence after sequence.
            logits: ``[rows, vocab]``.
            anchors: the token before the first slot of each sequence.
            draws: the rows of each sequence.

        Returns:
            Token ids, int64 ``[rows]``.
        """
        # Sorted by id, so that the first of equal scores is the lowest token.
        candidates = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1).indices.sort(dim=-1).values
        unary = logits.gather(-1, candidates).double()
        before = _before(candidates, anchors, draws)
        scores = unary[:, None] + self._edges(hidden, before, candidates).double()
        scores = scores / temperatures(draws, logits.device)[:, None, None]
        # Everything is on hand for every predecessor, so the walk itself needs no tensor work.
        best = (scores + candidate_noise(candidates, draws)[:, None]).argmax(-1).tolist()
        chosen = torch.tensor(_walk(best, draws), dtype=torch.int64, device=candidates.device)
        return candidates.gather(-1, chosen[:, None]).squeeze(-1)

    def _edges(self, hidden: torch.Tensor, before: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """Edge scores ``[rows, c, c]`` from each token of ``before [rows, c]`` to each of ``candidates [rows, c]``."""
        projected = self.projection(hidden).float()
        return (self.predecessors[before].float() * projected[:, None]) @ self.successors[
            candidates
        ].float().mT


def _before(candidates: torch.Tensor, anchors: Sequence[int], draws: Sequence[Draw]) -> torch.Tensor:
    """What may precede each row: the candidates of the row before, or in a sequence's first row its anchor, c times."""
    before = candidates.roll(1, 0)
    starts = accumulate((draw.count for draw in draws), initial=0)
    firsts = {
        start: anchor for start, anchor, draw in zip(starts, anchors, draws, strict=False) if draw.count
    }
    before[list(firsts)] = torch.tensor(list(firsts.values()), dtype=torch.int64, device=before.device)[
        :, None
    ]
    return before


def _walk(best: Sequence[Sequence[int]], draws: Sequence[Draw]) -> list[int]:
    """The candidate chosen at each row, `best` giving it for each choice at the row before."""
    chosen: list[int] = []
    for draw in draws:
        last = 0  # after the anchor all predecessors are the same
        for _ in range(draw.count):
            last = best[len(chosen)][last]
            chosen.append(last)
    return chosen
