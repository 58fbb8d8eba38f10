"""Gumbel noise as a pure function of (seed, output position, token).

The bits come from Philox-4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
section 4.3): a counter-based generator that passes BigCrush and needs no state, so any token's noise can be had
alone, in any order, on any device. The layout is

    key     = (seed, low 32 bits; seed, high 32 bits)
    counter = (token // 4; position, low; position, high; half)

and word ``token % 4`` of the output is the high half (``half = 0``) or the low half (``half = 1``) of the token's
64-bit integer k. The high halves alone already bound the noise, which lets a search skip most tokens at a quarter
of a Philox call each. With w = (k + 1/2) / 2**64, strictly inside (0, 1), the noise is ``g = -log(-log(1 - w))``,
computed so that no bit of k is lost at either end. Integers are the same on every device; the two logarithms are
float64, good to the last place or so.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox4x32(counter: tuple[torch.Tensor, ...], key: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Philox-4x32-10 on int64 tensors that hold 32-bit words.

    Args:
        counter: four broadcastable int64 tensors with values in [0, 2**32).
        key: two of the same kind.

    Returns:
        Four int64 tensors, values in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _M0)
        high1, low1 = _multiply(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def _multiply(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of a 32 x 32 bit product, by halves: a signed 64-bit product could overflow."""
    lower = (word & 0xFFFF) * factor
    upper = (word >> 16) * factor + (lower >> 16)
    return upper >> 16, ((upper & 0xFFFF) << 16) | (lower & 0xFFFF)


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise g(seed, position, token).

    Args:
        seeds: integer tensor, any 64-bit values (uint64 and int64 with the same bits are the same seed).
        positions: integer tensor, output index of the choice, >= 0.
        tokens: integer tensor, >= 0. The three broadcast against each other and share one device.

    Returns:
        float64, the broadcast shape; finite.
    """
    tokens = tokens.to(torch.int64)
    words = tuple(_pick(_draw(seeds, positions, tokens >> 2, half), tokens & 3) for half in (0, 1))
    return _to_gumbel(*words)


def gumbel_rows(seeds: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Noise of all tokens for several choices: seeds ``[rows]``, positions ``[rows]`` -> float64 ``[rows, vocab]``."""
    groups = torch.arange((vocab + 3) // 4, device=seeds.device)
    words = tuple(
        torch.stack(_draw(seeds[:, None], positions[:, None], groups, half), dim=-1).flatten(1)[:, :vocab]
        for half in (0, 1)
    )
    return _to_gumbel(*words)


def _draw(
    seeds: torch.Tensor, positions: torch.Tensor, groups: torch.Tensor, half: int
) -> tuple[torch.Tensor, ...]:
    seeds, positions = as_int64(seeds), as_int64(positions)
    seeds, positions, groups = torch.broadcast_tensors(seeds, positions, groups)
    counter = (groups & _MASK, positions & _MASK, (positions >> 32) & _MASK, torch.full_like(groups, half))
    return philox4x32(counter, (seeds & _MASK, (seeds >> 32) & _MASK))


def as_int64(values: torch.Tensor) -> torch.Tensor:
    """Integers as int64, a uint64 by its bits."""
    return values.view(torch.int64) if values.dtype == torch.uint64 else values.to(torch.int64)


def _pick(words: tuple[torch.Tensor, ...], which: torch.Tensor) -> torch.Tensor:
    return torch.stack(words, dim=-1).gather(-1, which.expand(words[0].shape)[..., None])[..., 0]


def _to_gumbel(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Noise from the halves of k. The upper half of the range works with ~k, i.e. with 1 - w, so w never rounds to 1."""
    upper = high >= 0x80000000
    high, low = torch.where(upper, high ^ _MASK, high), torch.where(upper, low ^ _MASK, low)
    fraction = (((high << 32) | low).to(torch.float64) + 0.5) * 2.0**-64
    exponential = torch.where(upper, -torch.log(fraction), -torch.log1p(-fraction))
    return -torch.log(exponential)
