"""Weights in the form in which the compiled products read them.

A weight ``[out, in]`` is cut into tiles of `TILE` output channels, each two panels of `PANEL`, one channel a vector lane. A
tile is one stretch of memory that a product reads from its first byte to its last, scales included:

* float32: per input channel, 2 panels x 16 numbers.
* bfloat16: per pair of input channels, 2 panels x 16 channels x 2 numbers.
* int8: per group of `GROUP` input channels, 2 panels x 8 quads x 16 channels x 4 bytes, then 2 x 16 scales (float16). A
  weight is ``scale * (byte - 128)``; scales are symmetric: the largest magnitude of the group over 127.
* int4: per group, 2 panels x 4 quads x 16 channels x 4 bytes, then 2 x 16 scales and 2 x 16 minima (float16). The low half of
  a byte belongs to quads 0 to 3 of the group, the high half to quads 4 to 7. A weight is ``scale * half + minimum``. That is
  the rule of the GGUF format Q4_1 (blocks of 32, scale = range / 15), so a weight that has been Q4_1 once is met again
  exactly.

Groups with scales of their own, for weights and for activations alike, keep one outlier from blurring more than its own
neighbours; whole-row scales were measured to cost too much (design, section 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.nn import functional


class Precision(Enum):
    """How weights are stored and multiplied."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT4 = "int4"


GROUP = 32
"""Input channels that share a scale, in weights and in activations."""
PANEL = 16
"""Output channels of a panel."""
TILE = 32
"""Output channels of a tile."""

KINDS: dict[Precision, Any] = {
    Precision.FLOAT32: np.float32(0),
    Precision.BFLOAT16: np.uint16(0),
    Precision.INT8: np.int8(0),
    Precision.INT4: np.uint8(0),
}
"""The last argument of compiled functions: a zero of the type that weights are stored in."""

_ALIGNMENT = 64
_PANELS = TILE // PANEL
_QUAD = 4
_QUADS = GROUP // _QUAD
_GROUP_BYTES = {
    Precision.FLOAT32: GROUP * TILE * 4,
    Precision.BFLOAT16: GROUP * TILE * 2,
    Precision.INT8: GROUP * TILE + TILE * 2,
    Precision.INT4: GROUP * TILE // 2 + 2 * TILE * 2,
}
_TILES_AT_ONCE = 64
"""Tiles packed together: bounds the memory that packing needs besides the result."""
AVX2_FORMS = {"avx2", "fma", "f16c"}
"""Abilities of processors that the integer products in `gemm_avx2` use."""
_FAST_WITH: dict[Precision, list[set[str]]] = {
    Precision.BFLOAT16: [{"avx512bf16"}],
    Precision.INT8: [{"avx512vnni"}, AVX2_FORMS],
    Precision.INT4: [{"avx512vnni"}, AVX2_FORMS],
}
"""Sets of abilities, with any of which a precision is fast; the others are fast everywhere."""
_INT8_MAX, _INT4_MAX = 127, 15
_INT8_ZERO = 128
_HALF_MAX = 65504.0


def padded(size: int, multiple: int) -> int:
    """`size`, brought up to a multiple."""
    return -(-size // multiple) * multiple


def group_bytes(precision: Precision) -> int:
    """Bytes of a tile for every `GROUP` input channels."""
    return _GROUP_BYTES[precision]


@dataclass(frozen=True)
class PackedWeight:
    """A weight, and the bias that goes with it.

    Attributes:
        out_features, in_features: of the weight as it was.
        padded_out, padded_in: brought up to `TILE` and `GROUP`. Channels that were added are zero.
        data: uint8 ``[padded_out / TILE, bytes of a tile]``, aligned to 64 bytes.
        scales: None; every precision so far keeps its scales in `data`.
        bias: float32 ``[padded_out]``, or None.
    """

    precision: Precision
    out_features: int
    in_features: int
    padded_out: int
    padded_in: int
    data: torch.Tensor
    scales: torch.Tensor | None
    bias: torch.Tensor | None

    @property
    def kind(self) -> Any:
        """The last argument of the compiled functions."""
        return KINDS[self.precision]

    @property
    def tiles(self) -> int:
        return self.padded_out // TILE

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.data, self.scales, self.bias) if t is not None)

    def address(self) -> tuple[int, int, int]:
        """Where data, scales and bias begin; 0 for what there is not. Valid as long as this object lives."""
        parts = (self.data, self.scales, self.bias)
        data, scales, bias = (0 if part is None else part.data_ptr() for part in parts)
        return data, scales, bias

    def unpack(self) -> torch.Tensor:
        """float32 ``[out_features, in_features]``: the numbers that products multiply with."""
        parts = [_unpack(tiles, self.precision) for tiles in self.data.split(_TILES_AT_ONCE)]
        return torch.cat(parts)[: self.out_features, : self.in_features]


def pack(weight: torch.Tensor, precision: Precision, bias: torch.Tensor | None = None) -> PackedWeight:
    """Pack a weight.

    Args:
        weight: ``[out_features, in_features]``, floating, on the CPU.
        precision: of the result. float32 keeps the numbers, bfloat16 rounds them to the nearest.
        bias: ``[out_features]`` or None; it stays float32.

    Raises:
        ValueError: for another shape, or numbers that an integer format cannot hold (not finite, beyond float16).
    """
    if weight.ndim != 2 or min(weight.shape) == 0:
        raise ValueError(f"a weight has two dimensions and is not empty, got {tuple(weight.shape)}")
    out_features, in_features = weight.shape
    if bias is not None and bias.shape != (out_features,):
        raise ValueError(f"a bias has one number per output channel, got {tuple(bias.shape)}")
    padded_out, padded_in = padded(out_features, TILE), padded(in_features, GROUP)
    tile_bytes = padded_in // GROUP * group_bytes(precision)
    data = torch.empty(padded_out // TILE, tile_bytes, dtype=torch.uint8)
    assert data.data_ptr() % _ALIGNMENT == 0
    for first in range(0, padded_out // TILE, _TILES_AT_ONCE):
        part = data[first : first + _TILES_AT_ONCE]
        channels = weight.detach()[first * TILE : (first + len(part)) * TILE].float()
        part.copy_(_pack(_padded_channels(channels, len(part) * TILE, padded_in), precision))
    if bias is not None:
        bias = functional.pad(bias.detach().float(), (0, padded_out - out_features)).contiguous()
    return PackedWeight(precision, out_features, in_features, padded_out, padded_in, data, None, bias)


def interleaved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Two weights of one shape as one, panel by panel in turn, so that a tile is 16 channels of each.

    Args:
        gate, up: ``[out, in]``.

    Returns:
        ``[2 * out brought up to 16, in]``: 16 rows of gate, the same 16 of up, and so on; missing ones are zero.

    Raises:
        ValueError: for two different shapes.
    """
    if gate.shape != up.shape:
        raise ValueError(f"gate and up have one shape, got {tuple(gate.shape)} and {tuple(up.shape)}")
    missing = -gate.shape[0] % PANEL
    panels = [functional.pad(w, (0, 0, 0, missing)).unflatten(0, (-1, PANEL)) for w in (gate, up)]
    return torch.stack(panels, 1).flatten(0, 2)


def _padded_channels(channels: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """Output channels of zeros; input channels like the last one, so that a group's range stays what it was.

    (Activations are zero there, whatever the weights.)
    """
    missing = width - channels.shape[1]
    channels = torch.cat([channels, channels[:, -1:].expand(-1, missing)], 1) if missing else channels
    return functional.pad(channels, (0, 0, 0, rows - channels.shape[0]))


def _pack(channels: torch.Tensor, precision: Precision) -> torch.Tensor:
    """uint8 ``[tiles, bytes]`` of float32 ``[tiles * TILE, padded_in]``."""
    if precision is Precision.FLOAT32:
        lanes = channels.view(-1, TILE, channels.shape[1]).transpose(1, 2)
        return _bytes(lanes)
    if precision is Precision.BFLOAT16:
        pairs = channels.bfloat16().view(-1, TILE, channels.shape[1] // 2, 2).transpose(1, 2)
        return _bytes(pairs)
    groups = channels.view(-1, _PANELS, PANEL, channels.shape[1] // GROUP, GROUP)
    if precision is Precision.INT8:
        whole, scales = symmetric(groups)
        quads = _quads((whole + _INT8_ZERO).to(torch.uint8))
        return torch.cat([quads.flatten(2), _scale_bytes(scales)], 2).flatten(1)
    whole, scales, minima = ranged(groups)
    quads = _quads(whole.to(torch.uint8))
    low, high = quads.split(_QUADS // 2, 3)
    halves = low | (high << 4)
    return torch.cat([halves.flatten(2), _scale_bytes(scales), _scale_bytes(minima)], 2).flatten(1)


def _unpack(tiles: torch.Tensor, precision: Precision) -> torch.Tensor:
    """float32 ``[tiles * TILE, padded_in]`` of uint8 ``[tiles, bytes]``."""
    count = tiles.shape[0]
    if precision is Precision.FLOAT32:
        return tiles.view(torch.float32).view(count, -1, TILE).transpose(1, 2).flatten(0, 1)
    if precision is Precision.BFLOAT16:
        pairs = tiles.view(torch.bfloat16).view(count, -1, TILE, 2).transpose(1, 2)
        return pairs.flatten(2).flatten(0, 1).float()
    whole, scales, minima = unpacked_integers(tiles, precision)
    values = whole.float() * scales[..., None] + minima[..., None]
    return values.flatten(-2).flatten(0, 1)


def unpacked_integers(
    tiles: torch.Tensor, precision: Precision
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The parts of an int8 or int4 weight.

    Args:
        tiles: uint8 ``[tiles, bytes]``, `PackedWeight.data`.
        precision: int8 or int4.

    Returns:
        Whole numbers, int32 ``[tiles, TILE, groups, GROUP]``: -127 to 127 (int8), 0 to 15 (int4); scales and minima, float32
        ``[tiles, TILE, groups]``. Minima are 0 for int8.
    """
    parts = tiles.view(tiles.shape[0], -1, group_bytes(precision))
    size = GROUP * TILE if precision is Precision.INT8 else GROUP * TILE // 2
    numbers = parts[:, :, size:].contiguous().view(torch.float16).float()
    numbers = numbers.view(*parts.shape[:2], -1, TILE).permute(2, 0, 3, 1)
    scales = numbers[0]
    quads = parts[:, :, :size].view(*parts.shape[:2], _PANELS, -1, PANEL, _QUAD)
    if precision is Precision.INT8:
        return _channels(quads).int() - _INT8_ZERO, scales, torch.zeros_like(scales)
    return _channels(torch.cat([quads & 15, quads >> 4], 3)).int(), scales, numbers[1]


def symmetric(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers from -127 to 127 and a scale for each group.

    Args:
        groups: float32 ``[..., GROUP]``.

    Returns:
        Whole numbers as float32 ``[..., GROUP]``; scales, float16 ``[...]``, 0 for a group of zeros.
    """
    scales = _half(groups.abs().amax(-1) / _INT8_MAX)
    step = scales.float()[..., None]
    whole = torch.where(step > 0, groups / step, 0.0).round().clamp(-_INT8_MAX, _INT8_MAX)
    return whole, scales


def ranged(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Whole numbers from 0 to 15, a scale and a minimum for each group.

    Args:
        groups: float32 ``[..., GROUP]``.

    Returns:
        Whole numbers as float32 ``[..., GROUP]``; scales and minima, float16 ``[...]``.
    """
    lowest, highest = groups.amin(-1), groups.amax(-1)
    minima, scales = _half(lowest), _half((highest - lowest) / _INT4_MAX)
    step = scales.float()[..., None]
    above = groups - minima.float()[..., None]
    whole = torch.where(step > 0, above / step, 0.0).round().clamp(0, _INT4_MAX)
    return whole, scales, minima


def _half(numbers: torch.Tensor) -> torch.Tensor:
    if not bool((numbers.abs() <= _HALF_MAX).all()):
        raise ValueError("a weight that is not finite, or is beyond float16, cannot be stored in integers")
    return numbers.half()


def _quads(groups: torch.Tensor) -> torch.Tensor:
    """``[tiles, panels, PANEL, groups, GROUP]`` as ``[tiles, groups, panels, quads, PANEL, 4]``."""
    return groups.unflatten(-1, (_QUADS, _QUAD)).permute(0, 3, 1, 4, 2, 5)


def _channels(quads: torch.Tensor) -> torch.Tensor:
    """``[tiles, groups, panels, quads, PANEL, 4]`` as ``[tiles, TILE, groups, GROUP]``."""
    return quads.permute(0, 2, 4, 1, 3, 5).flatten(-2).flatten(1, 2)


def _scale_bytes(scales: torch.Tensor) -> torch.Tensor:
    """Bytes ``[tiles, groups, ...]`` of float16 ``[tiles, panels, PANEL, groups]``."""
    return scales.permute(0, 3, 1, 2).flatten(2).contiguous().view(torch.uint8)


def _bytes(tiles: torch.Tensor) -> torch.Tensor:
    return tiles.contiguous().flatten(1).view(torch.uint8)


@dataclass(frozen=True)
class Activations:
    """Room for rows in the form in which products read them; `prepare` fills it.

    Attributes:
        values: ``[rows, padded_in]``: float32; bfloat16's bits as int16; int8 for int8 and int4.
        scales: float32 ``[rows, groups]``: an int8 value times its group's scale is the activation. None for floats.
        sums: ``[rows, groups]``: what the product needs of a group's sum. For int4 float32, scale times the sum of the int8
            values; for int8 int32, -128 times that sum (it makes up for the weights' being stored 128 too high). None for
            floats.
    """

    values: torch.Tensor
    scales: torch.Tensor | None
    sums: torch.Tensor | None

    @staticmethod
    def empty(rows: int, padded_in: int, precision: Precision) -> Activations:
        """Room for `rows` rows, not filled with anything."""
        if precision is Precision.FLOAT32:
            return Activations(torch.empty(rows, padded_in, dtype=torch.float32), None, None)
        if precision is Precision.BFLOAT16:
            return Activations(torch.empty(rows, padded_in, dtype=torch.int16), None, None)
        values = torch.empty(rows, padded_in, dtype=torch.int8)
        scales = torch.empty(rows, padded_in // GROUP, dtype=torch.float32)
        kind = torch.int32 if precision is Precision.INT8 else torch.float32
        return Activations(values, scales, torch.empty(rows, padded_in // GROUP, dtype=kind))

    def address(self) -> tuple[int, int, int]:
        """Where values, scales and sums begin; 0 for what there is not."""
        parts = (self.values, self.scales, self.sums)
        values, scales, sums = (0 if part is None else part.data_ptr() for part in parts)
        return values, scales, sums


def available(precision: Precision, device: torch.device) -> bool:
    """Whether products in this precision can be compiled here: on a CPU, with numba. How fast they are is `fast`'s matter."""
    if device.type != "cpu":
        return False
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return precision in KINDS


def fast(precision: Precision) -> bool:
    """Whether this machine has the instructions that the precision is made for.

    Without them the results of int8 and int4 are the same, and several times slower.
    """
    try:
        from draftproof.models.kernels.compiling import target_features
    except ImportError:
        return False
    wanted = _FAST_WITH.get(precision)
    return wanted is None or any(abilities <= target_features() for abilities in wanted)
