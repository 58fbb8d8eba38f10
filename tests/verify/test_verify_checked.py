"""Sampling from plain numbers gives what sampling from tensors gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftproof.errors import ContractError
from draftproof.verify import SamplingInfo, sample_checked, verify_drafter_invariant


@settings(
    derandomize=True,
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    bs=st.integers(1, 4),
    n=st.integers(1, 4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1 << 20),
)
def test_plain_numbers_choose_the_same(path: str, bs: int, n: int, dtype: torch.dtype, seed: int) -> None:
    luck = np.random.default_rng(seed)
    vocab = 150
    logits = torch.tensor(luck.normal(0.0, 3.0, (bs * n, vocab)), dtype=dtype)
    numbers = {
        "temperature": luck.choice([0.3, 0.8, 1.5], bs).tolist(),
        "top_k": luck.choice([-1, 0, 1, 20, 1 << 40], bs).tolist(),
        "top_p": luck.choice([1.0, 0.95, 0.2], bs).tolist(),
        "min_p": luck.choice([0.0, 0.1], bs).tolist(),
    }
    seeds = luck.integers(-(1 << 63), (1 << 63) - 1, bs).tolist()
    positions = luck.integers(0, 999, bs).tolist()
    candidates = luck.integers(0, vocab, (bs, n)).tolist()
    for _ in range(n):  # until all drafts are what is chosen
        asked = {"candidates": torch.tensor(candidates), "next_token_logits": logits}
        kept, bonus = verify_drafter_invariant(
            **asked,
            sampling_info=SamplingInfo.of(**numbers),
            seeds=torch.tensor(seeds),
            positions=torch.tensor(positions),
        )
        expected = list(zip(kept.tolist(), bonus.tolist(), strict=True))
        mine = sample_checked(
            candidates=candidates, next_token_logits=logits, seeds=seeds, positions=positions, **numbers
        )
        assert mine == expected
        for row, (accepted, choice) in zip(candidates, mine, strict=True):
            if accepted + 1 < n:
                row[accepted + 1] = choice


@pytest.mark.parametrize(
    ("value", "rows", "code"),
    [(torch.nan, 2, "DP121"), (torch.inf, 2, "DP122"), (0.0, 3, "DP105")],
)
def test_rows_are_checked_all_the_same(path: str, value: float, rows: int, code: str) -> None:
    logits = torch.zeros(rows, 9)
    logits[0, 3] = value
    with pytest.raises(ContractError) as caught:
        sample_checked(
            candidates=[[1], [2]],
            next_token_logits=logits,
            temperature=[1.0, 1.0],
            top_k=[0, 0],
            top_p=[0.9, 0.9],
            min_p=[0.0, 0.0],
            seeds=[1, 2],
            positions=[0, 0],
        )
    assert caught.value.code == code
