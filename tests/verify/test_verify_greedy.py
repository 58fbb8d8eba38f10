"""The greedy rule on rows: the compiled walk against plain PyTorch, and both against argmax and the rule on predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import ContractError
from draftproof.verify import compute_dflash_correct_drafts_and_bonus, verify_greedy
from draftproof.verify.greedy import greedy_reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def rows_with_ties(count: int, vocab: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Few different values, both zeros and infinities among them, so that ties are the rule."""
    generator = np.random.default_rng(seed)
    values = np.array([-np.inf, -3.0, -1.5, -0.0, 0.0, 1.5, 2.0, np.inf])
    weights = np.array([1.0, 6, 6, 3, 3, 0.2, 0.02, 0.005])
    drawn = generator.choice(values, (count, vocab), p=weights / weights.sum())
    return torch.tensor(drawn, dtype=dtype)


def by_the_rule(logits: torch.Tensor, firsts: list[int], drafts: list[list[int]]) -> list[tuple[int, int]]:
    """One sequence at a time, by the rule on predictions."""
    outcomes = []
    for first, mine in zip(firsts, drafts, strict=True):
        predict = logits[first : first + 1 + len(mine)].float().argmax(-1)
        accepted, bonus = compute_dflash_correct_drafts_and_bonus(
            candidates=torch.tensor([[0, *mine]]), target_predict=predict[None]
        )
        outcomes.append((int(accepted), int(bonus)))
    return outcomes


@settings(derandomize=True, max_examples=120, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    vocab=st.sampled_from([1, 3, 63, 64, 65, 200, 513]),
    dtype=st.sampled_from(DTYPES),
    gap=st.integers(0, 2),
    agree=st.floats(0.0, 1.0),
    strided=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_rows_give_what_the_rule_gives_on_their_argmax(
    lengths: list[int], vocab: int, dtype: torch.dtype, gap: int, agree: float, strided: bool, seed: int
) -> None:
    luck = np.random.default_rng(seed)
    firsts, at = [], 0
    for length in lengths:  # rows between the sequences' own belong to nobody here
        at += gap
        firsts.append(at)
        at += 1 + length
    logits = rows_with_ties(at, vocab * (2 if strided else 1), dtype, seed)
    if strided:
        logits = logits[:, ::2]
    best = logits.float().argmax(-1).tolist()
    drafts = [
        [best[first + j] if luck.random() < agree else int(luck.integers(-1, vocab)) for j in range(length)]
        for first, length in zip(firsts, lengths, strict=True)
    ]
    expected = by_the_rule(logits, firsts, drafts)
    assert verify_greedy(next_token_logits=logits, first_rows=firsts, drafts=drafts) == expected
    assert greedy_reference(logits, firsts, drafts) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_matters_where_a_row_is_read_and_nowhere_else(path: str, dtype: torch.dtype) -> None:
    logits = rows_with_ties(6, 200, dtype, 3).clamp(-3.0, 2.0)
    best = logits.float().argmax(-1).tolist()
    wrong = [(token + 1) % 200 for token in best]
    logits[1, 150] = torch.nan
    logits[5, 0] = -torch.tensor(torch.nan)
    outcomes = verify_greedy(
        next_token_logits=logits,
        first_rows=[0, 0, 3, 4],
        drafts=[[best[0], best[1]], [wrong[0], best[1]], [], [best[4]]],
    )
    assert outcomes == [(1, -1), (0, best[0]), (0, best[3]), (1, -1)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_and_company_change_nothing(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logits = torch.randn(40, 20_000, generator=torch.Generator().manual_seed(1))
        best = logits.argmax(-1).tolist()
        firsts, drafts = list(range(0, 40, 4)), [[best[i], best[i + 1], 7] for i in range(0, 40, 4)]
        together = verify_greedy(next_token_logits=logits, first_rows=firsts, drafts=drafts)
        assert together == [(2, best[i + 2]) for i in range(0, 40, 4)]
        alone = [
            verify_greedy(next_token_logits=logits, first_rows=[first], drafts=[mine])[0]
            for first, mine in zip(firsts, drafts, strict=True)
        ]
        assert together == alone
    finally:
        torch.set_num_threads(before)


def test_no_sequence_is_no_outcome() -> None:
    assert verify_greedy(next_token_logits=torch.zeros(1, 4), first_rows=[], drafts=[]) == []


@pytest.mark.parametrize(
    ("logits", "firsts", "drafts", "code"),
    [
        (torch.zeros(4), [0], [[]], "DP102"),
        (torch.zeros(0, 4), [0], [[]], "DP103"),
        (torch.zeros(2, 4, dtype=torch.int64), [0], [[]], "DP111"),
        (torch.zeros(2, 0), [0], [[]], "DP120"),
        (torch.zeros(2, 4), [0], [[1, 2]], "DP105"),
        (torch.zeros(2, 4), [-1], [[]], "DP105"),
        (torch.zeros(2, 4), [0, 1], [[]], "DP105"),
    ],
)
def test_what_does_not_fit_is_refused(
    logits: torch.Tensor, firsts: list[int], drafts: list[list[int]], code: str
) -> None:
    with pytest.raises(ContractError) as caught:
        verify_greedy(next_token_logits=logits, first_rows=firsts, drafts=drafts)
    assert caught.value.code == code
