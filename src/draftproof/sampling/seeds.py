"""Seeds of the choices of one request."""

from __future__ import annotations

_MASK = 2**64 - 1


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of a request with `n` choices; choice 0 has the request's own.

    For ``index > 0`` it is ``mix(seed + index * 0x9E3779B97F4A7C15)`` modulo 2**64, taken as a signed number, where
    `mix` is the output function of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators",
    with Stafford's variant 13 constants):
    ``z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31``.
    It is a bijection of 64 bits, so the choices 1, 2, ... of one request never share a seed.

    Args:
        seed: signed 64 bits.
        index: >= 0.

    Returns:
        Signed 64 bits.
    """
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return z - 2**64 if z >= 2**63 else z
