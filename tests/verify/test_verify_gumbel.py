"""The noise: the generator's published answers, its layout, its range, its distribution, and the compiled twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import gumbel_r, kstest

from draftproof.verify import gumbel_noise
from draftproof.verify.gumbel import gumbel_rows, philox4x32

# Known answers of Philox-4x32-10 as published with the Random123 library (kat_vectors): counter, key, output.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    words = philox4x32(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(w) for w in words) == answer


def philox_by_hand(counter: list[int], key: list[int]) -> list[int]:
    """Unbounded Python integers, straight from the paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def noise_by_hand(seed: int, position: int, token: int) -> float:
    seed %= 2**64
    key = [seed & 0xFFFFFFFF, seed >> 32]
    half = [
        philox_by_hand([token >> 2, position & 0xFFFFFFFF, position >> 32, h], key)[token & 3] for h in (0, 1)
    ]
    whole = half[0] << 32 | half[1]
    if whole < 2**63:
        exponential = -math.log1p(-(whole + 0.5) * 2.0**-64)
    else:
        exponential = -math.log((2**64 - 1 - whole + 0.5) * 2.0**-64)
    return -math.log(exponential)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 123456789])
@pytest.mark.parametrize("position", [0, 1, 2**32 - 1, 2**32, 2**40 + 5])
def test_noise_is_what_the_definition_says(seed: int, position: int) -> None:
    tokens = torch.tensor([0, 1, 2, 3, 4, 5, 63, 64, 50_000, 151_935])
    noise = gumbel_noise(torch.tensor(seed), torch.tensor(position), tokens)
    expected = [noise_by_hand(seed, position, int(v)) for v in tokens]
    torch.testing.assert_close(noise, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("position", [0, 7, 2**33])
def test_compiled_integers_are_bit_identical(position: int) -> None:
    pytest.importorskip("numba")
    from draftproof.verify.kernels import compiled

    tokens = torch.arange(compiled.BLOCK * 4)
    for seed in (3, -3, 2**62 + 1):
        noise = gumbel_noise(torch.tensor(seed), torch.tensor(position), tokens).numpy()
        words = np.empty((4, compiled.BLOCK // 4), np.uint64)
        u_seed, u_position = np.uint64(seed % 2**64), np.uint64(position)
        for start in range(0, len(tokens), compiled.BLOCK):
            compiled._high_words(np.uint64(start // 4), u_seed, u_position, words)
            for i in range(compiled.BLOCK):
                high = words[i & 3, i >> 2]
                key = [seed % 2**64 & 0xFFFFFFFF, seed % 2**64 >> 32]
                group = (start + i) >> 2
                by_hand = philox_by_hand([group, position & 0xFFFFFFFF, position >> 32, 0], key)[i & 3]
                assert int(high) == by_hand
                compiled_noise = compiled._noise(start + i, high, u_seed, u_position)
                # Logarithms may differ in the last place or two between libraries; the integers may not.
                assert compiled_noise == pytest.approx(noise[start + i], rel=1e-14, abs=1e-15)


def test_whole_rows_equal_single_tokens_and_broadcast() -> None:
    seeds, positions = torch.tensor([5, -6]), torch.tensor([0, 9])
    rows = gumbel_rows(seeds, positions, 101)
    assert torch.equal(rows, gumbel_noise(seeds[:, None], positions[:, None], torch.arange(101)))
    assert rows.dtype == torch.float64
    few = torch.tensor([[100, 3, 8], [0, 50, 3]])
    assert torch.equal(rows.gather(1, few), gumbel_noise(seeds[:, None], positions[:, None], few))


def test_unsigned_and_signed_seeds_with_the_same_bits_are_the_same() -> None:
    signed = torch.tensor([-1, -(2**63), 5])
    unsigned = torch.tensor([2**64 - 1, 2**63, 5], dtype=torch.uint64)
    zero = torch.tensor(0)
    assert torch.equal(gumbel_noise(signed, zero, zero), gumbel_noise(unsigned, zero, zero))


def test_extreme_integers_stay_inside() -> None:
    """The ends of the 64-bit range: finite, and ordered the right way round."""
    from draftproof.verify.gumbel import _to_gumbel

    top = 2**32 - 1
    high = torch.tensor([0, 0, 0x7FFFFFFF, 0x80000000, top, top])
    low = torch.tensor([0, 1, top, 0, top - 1, top])
    noise = _to_gumbel(high, low)
    assert torch.isfinite(noise).all()
    assert (noise.diff() <= 0).all()
    assert noise[0] == pytest.approx(65 * math.log(2))
    assert noise[-1] == pytest.approx(-math.log(65 * math.log(2)))


def test_noise_is_standard_gumbel() -> None:
    """Kolmogorov-Smirnov at 1e-9, over tokens, over positions and over seeds."""
    span, zero = torch.arange(100_000), torch.tensor(0)
    for noise in (
        gumbel_noise(torch.tensor(42), torch.tensor(7), span),
        gumbel_noise(torch.tensor(42), span, zero),
        gumbel_noise(span, torch.tensor(7), zero),
    ):
        assert kstest(noise.numpy(), gumbel_r.cdf).pvalue > 1e-9


def test_noise_of_neighbours_is_uncorrelated() -> None:
    seeds = torch.arange(300)[:, None, None]
    noise = gumbel_noise(seeds, torch.arange(20)[:, None], torch.arange(20)) - 0.5772156649
    for pair in ((noise[1:], noise[:-1]), (noise[:, 1:], noise[:, :-1]), (noise[..., 1:], noise[..., :-1])):
        product = pair[0] * pair[1]
        assert abs(product.mean() / product.std()) * product.numel() ** 0.5 < 6.5  # 1e-10
