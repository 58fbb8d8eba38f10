"""Rotary position embedding of the drafter: its settings, its tables, its application.

The drafter's RoPE is its own, whatever the target uses. Rotation follows the half-split convention of Qwen3:
channel i is paired with channel ``i + head_dim / 2``. Scaled variants take their frequencies from
Transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from draftproof.errors import DrafterError
from draftproof.models.drafters.fields import Fields

# Scalings whose frequencies do not change with the length of the text, and the keys each understands. Those
# that do change ("dynamic", "longrope") would need the cached context keys rotated anew, so they are refused.
_SCALINGS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
        frozenset(),
    ),
    "yarn": (
        frozenset({"factor"}),
        frozenset(
            (
                *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
                *("mscale", "mscale_all_dim", "truncate"),
            )
        ),
    ),
}


@dataclass(frozen=True)
class RopeSettings:
    """How positions become angles.

    Attributes:
        kind: a Transformers ``rope_type``.
        theta: the base.
        scaling: the kind's own parameters.
        head_dim: channels rotated, all of a head's.
        max_position: the drafter's ``max_position_embeddings``.
    """

    kind: str
    theta: float
    scaling: tuple[tuple[str, float], ...]
    head_dim: int
    max_position: int


def read_rope(top: Fields, head_dim: int) -> RopeSettings:
    """The RoPE settings of a config, from ``rope_parameters`` or ``rope_theta`` / ``rope_scaling``.

    Raises:
        DrafterError: DP302 contradictory or incomplete, DP303 an unsupported kind, DP314 no base anywhere.
    """
    if head_dim % 2:
        raise top.invalid(f"head_dim must be even for rotary embedding, got {head_dim}")
    given = _merged(top)
    theta = _theta(top, given)
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("type", None)
    if given.pop("partial_rotary_factor", 1.0) != 1.0:
        raise top.unsupported("rope_parameters", "rotating only a part of each head is not supported")
    if kind not in _SCALINGS:
        raise DrafterError(
            "DP303", f"{top.where}: rope_type {kind!r} is not supported; supported are {', '.join(_SCALINGS)}"
        )
    return RopeSettings(
        kind=kind,
        theta=theta,
        scaling=_scaling(top, kind, given),
        head_dim=head_dim,
        max_position=top.count("max_position_embeddings", default=32768),
    )


def _merged(top: Fields) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        part = top.get(name)
        if part is None:
            continue
        if not isinstance(part, Mapping):
            raise top.invalid(f"{name} must be an object")
        if any(isinstance(value, Mapping) for value in part.values()):
            raise top.unsupported(name, "settings that differ by layer type are not supported")
        merged.update((key, value) for key, value in part.items() if value is not None)
    return merged


def _theta(top: Fields, given: dict[str, Any]) -> float:
    inner, outer = given.pop("rope_theta", None), top.get("rope_theta")
    if inner is None and outer is None:
        raise DrafterError(
            "DP314",
            f"{top.where} gives no RoPE base (rope_theta), and loaders disagree on the default",
        )
    if inner is not None and outer is not None and inner != outer:
        raise top.invalid(f"rope_theta is {outer} at the top level but {inner} in the RoPE settings")
    theta = Fields({"rope_theta": outer if inner is None else inner}, top.where).number("rope_theta")
    if theta <= 0:
        raise top.invalid(f"rope_theta must be positive, got {theta}")
    return theta


def _scaling(top: Fields, kind: str, given: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    needed, optional = _SCALINGS[kind]
    original = top.get("original_max_position_embeddings")
    if original is not None and "original_max_position_embeddings" in needed | optional:
        given.setdefault("original_max_position_embeddings", original)
    missing, unknown = sorted(needed - given.keys()), sorted(given.keys() - needed - optional)
    if missing:
        raise top.invalid(f"rope_type {kind!r} needs {', '.join(missing)}")
    if unknown:
        raise DrafterError(
            "DP303", f"{top.where}: rope_type {kind!r} with {', '.join(unknown)} is not supported"
        )
    for key, value in given.items():
        if not isinstance(value, bool):
            Fields(given, top.where).number(key)
    return tuple(sorted(given.items()))


def inverse_frequencies(settings: RopeSettings) -> tuple[torch.Tensor, float]:
    """Angular frequency of each channel pair, float32 ``[head_dim / 2]``, and a factor on cos and sin."""
    if settings.kind == "default":
        exponents = torch.arange(0, settings.head_dim, 2, dtype=torch.float32) / settings.head_dim
        return 1.0 / (settings.theta**exponents), 1.0
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = Qwen3Config(
        head_dim=settings.head_dim,
        max_position_embeddings=settings.max_position,
        rope_parameters={"rope_type": settings.kind, "rope_theta": settings.theta, **dict(settings.scaling)},
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[settings.kind](config, torch.device("cpu"))
    return frequencies.float(), float(factor)


class RotaryTable:
    """Cosines and signed sines by position, computed once and extended by doubling as texts grow longer."""

    def __init__(self, settings: RopeSettings, dtype: torch.dtype, device: torch.device) -> None:
        self._frequencies, self._factor = inverse_frequencies(settings)
        self._dtype, self._device = dtype, device
        self._cos, self._sin = self._build(1024)

    def _build(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self._frequencies[None, :]
        cos, sin = angles.cos() * self._factor, angles.sin() * self._factor
        # The sine's first half is negative, so that a rotation is x * cos + (x with halves swapped) * sin.
        tables = (torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
        cosines, sines = (table.to(device=self._device, dtype=self._dtype) for table in tables)
        return cosines, sines

    def at(self, positions: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines at ``positions [n]``, all below `end`: two ``[n, 1, head_dim]``."""
        have = self._cos.shape[0]
        if end > have:
            while have < end:
                have *= 2
            self._cos, self._sin = self._build(have)
        return self._cos[positions, None], self._sin[positions, None]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``[..., head_dim]`` by tables of `RotaryTable` that broadcast against it."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
