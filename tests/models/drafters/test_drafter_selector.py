"""The candidate selector's ties."""

from __future__ import annotations

import pytest
import torch

from draftproof.models.drafters import DraftSampling
from draftproof.models.drafters.choice import Draw
from draftproof.models.drafters.selector import CandidateSelector


@pytest.mark.parametrize("seed", range(20))
def test_ties_go_to_the_lowest_token(seed):
    """Without edges the selector is a plain argmax, so equal logits must fall to the lowest of them."""
    logits = torch.randint(0, 3, (4, 12), generator=torch.Generator().manual_seed(seed)).float()
    selector = CandidateSelector(torch.zeros(12, 2), torch.zeros(12, 2), lambda h: h[:, :2], top_k=12)
    assert (
        selector.choose(torch.ones(4, 5), logits, [0], [Draw(DraftSampling(), 0, 4)]).tolist()
        == logits.argmax(-1).tolist()
    )


def test_more_candidates_than_tokens():
    selector = CandidateSelector(torch.zeros(3, 2), torch.zeros(3, 2), lambda h: h[:, :2], top_k=16)
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    assert selector.choose(torch.ones(1, 5), logits, [0], [Draw(DraftSampling(), 0, 1)]).tolist() == [1]
