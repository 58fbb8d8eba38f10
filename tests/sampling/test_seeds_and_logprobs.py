"""Seeds of further choices, and log-probabilities of raw rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof.sampling import TokenLogprobs, choice_seed, token_logprobs

INT64 = st.integers(-(2**63), 2**63 - 1)


def test_choice_seeds_are_the_known_stream_of_splitmix64() -> None:
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [choice_seed(1234567, index) % 2**64 for index in range(1, 6)] == known


@given(INT64, st.integers(1, 16_384), st.integers(1, 16_384))
def test_choice_seeds_fit_and_differ(seed: int, one: int, other: int) -> None:
    assert choice_seed(seed, 0) == seed
    assert -(2**63) <= choice_seed(seed, one) < 2**63
    assert (choice_seed(seed, one) == choice_seed(seed, other)) == (one == other)


def by_hand(row: torch.Tensor, token: int, top: int) -> TokenLogprobs:
    logits = row.float().tolist()
    most = max(logits)
    total = most + math.log(math.fsum(math.exp(value - most) for value in logits))
    ranking = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    best = ranking if top == -1 else ranking[:top]
    return TokenLogprobs(
        token, logits[token] - total, 1 + ranking.index(token), tuple((i, logits[i] - total) for i in best)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top", [0, 1, 5, 50, 60, -1])
def test_values_ranks_and_the_likeliest(dtype: torch.dtype, top: int) -> None:
    generator = torch.Generator().manual_seed(1)
    # Rounded, so that equal logits abound and the order among them matters.
    logits = (torch.randn(20, 50, generator=generator) * 2).round().to(dtype)
    tokens = torch.randint(50, (20,), generator=generator).tolist()
    found = token_logprobs(logits, tokens, top)
    for row, token, mine in zip(logits, tokens, found, strict=True):
        expected = by_hand(row, token, top)
        assert (mine.token_id, mine.rank) == (expected.token_id, expected.rank)
        assert [i for i, _ in mine.top] == [i for i, _ in expected.top]
        assert mine.logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert [p for _, p in mine.top] == pytest.approx([p for _, p in expected.top], abs=1e-5)
        assert dict(mine.top).get(token, mine.logprob) == mine.logprob


@pytest.mark.parametrize("vocab", [421, 49_152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(vocab: int, dtype: torch.dtype) -> None:
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(37, vocab, generator=generator) * 3).to(dtype)
    tokens = torch.randint(vocab, (37,), generator=generator).tolist()
    together = token_logprobs(logits, tokens, 3)
    for start, end in ((0, 1), (5, 6), (36, 37), (3, 11), (10, 36)):
        assert token_logprobs(logits[start:end], tokens[start:end], 3) == together[start:end]


def test_rows_and_tokens_must_be_as_many() -> None:
    with pytest.raises(RuntimeError, match="2 rows of logits for 1 tokens"):
        token_logprobs(torch.zeros(2, 5), [1], 0)
    assert token_logprobs(torch.zeros(0, 5), [], 3) == []
