"""DFlash 2's candidate selector: rescores each slot's best tokens by what was chosen for the slot before."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftproof.models.drafters.base import DraftSampling
from draftproof.models.drafters.choice import candidate_noise
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
        self,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        anchor: int,
        sampling: DraftSampling,
        output_position: int,
    ) -> torch.Tensor:
        """Choose one token a slot, left to right, among the slot's `top_k` by unary logit.

        The score of candidate v after u at a slot with hidden state h is its logit plus
        ``<pred(u) * proj(h), succ(v)>`` (design section 4). Greedy takes the best score; above temperature 0
        the best of ``score / T + g``, g being the target's own Gumbel noise. Ties go to the lower token id.

        Args:
            hidden: ``[k, hidden]``, mask slots only.
            logits: ``[k, vocab]``.
            anchor: the token before the first slot.
            output_position: output index of the first slot.

        Returns:
            Token ids, int64 ``[k]``.
        """
        # Sorted by id, so that the first of equal scores is the lowest token.
        candidates = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1).indices.sort(dim=-1).values
        unary = logits.gather(-1, candidates).float()
        first, between = self._edges(hidden, candidates, anchor)
        noise = candidate_noise(candidates, sampling, output_position)
        temperature = sampling.temperature if sampling.temperature > 0 else 1.0
        # Everything is on hand for every predecessor, so the walk itself needs no tensor work.
        initial = ((unary[0] + first).double() / temperature + noise[0]).argmax()
        best = ((unary[1:, None] + between).double() / temperature + noise[1:, None]).argmax(-1).tolist()
        chosen = [int(initial)]
        for row in best:
            chosen.append(row[chosen[-1]])
        return candidates.gather(-1, torch.tensor(chosen, device=candidates.device)[:, None]).squeeze(-1)

    def _edges(
        self, hidden: torch.Tensor, candidates: torch.Tensor, anchor: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Edge scores: anchor to slot 0 ``[c]``, each slot's candidates to the next's ``[k - 1, c, c]``."""
        projected = self.projection(hidden).float()
        successors = self.successors[candidates].float()
        first = successors[0] @ (self.predecessors[anchor].float() * projected[0])
        before = self.predecessors[candidates[:-1]].float() * projected[1:, None]
        return first, before @ successors[1:].mT
