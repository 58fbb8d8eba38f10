"""The batched choice against each row's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.models.drafters import DraftSampling
from draftproof.models.drafters.choice import Draw, choose_tokens, probability
from draftproof.verify import SamplingInfo, gumbel_choice


@given(rows=st.integers(1, 20), vocab=st.integers(1, 1100), spread=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_greedy_takes_the_first_of_equal_maxima(rows, vocab, spread, seed):
    logits = torch.randint(
        -spread, spread, (rows, vocab), generator=torch.Generator().manual_seed(seed)
    ).float()
    logits[seed % rows] = -torch.inf
    assert choose_tokens(logits, [Draw(DraftSampling(), 0, rows)]).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_has_its_own_settings(dtype):
    generator = torch.Generator().manual_seed(0)
    settings_of = [
        DraftSampling(),
        DraftSampling(0.7, 0, 0.9, 0.0, 3),
        DraftSampling(0.0, 5, 0.5, 0.1, 4),
        DraftSampling(1.3, 9, 1.0, 0.0, 2**64 - 1),
        DraftSampling(2.0, 0, 1.0, 0.2, 3),
    ]
    draws = [Draw(sampling, 7 * index, 1 + index % 3) for index, sampling in enumerate(settings_of)]
    logits = torch.randn(sum(draw.count for draw in draws), 300, generator=generator).to(dtype)
    want = []
    for row, (draw, offset) in enumerate((d, o) for d in draws for o in range(d.count)):
        sampling, single = draw.sampling, logits[row : row + 1]
        if sampling.temperature == 0:
            want.append(int(single.float().argmax()))
            continue
        info = SamplingInfo.of(
            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p
        )
        seed = sampling.seed if sampling.seed < 2**63 else sampling.seed - 2**64
        position = torch.tensor([draw.output_position + offset])
        choice = gumbel_choice(
            logits=single, sampling_info=info, seeds=torch.tensor([seed]), positions=position
        )
        want.append(int(choice))
    assert choose_tokens(logits, draws).tolist() == want


def test_probability():
    logits = torch.randn(19, 70, generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens = torch.arange(19)
    want = logits.double().softmax(-1)[range(19), tokens]
    torch.testing.assert_close(probability(logits, tokens).double(), want, atol=1e-6, rtol=1e-5)
