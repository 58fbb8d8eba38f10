"""What `gemm` computes, in plain PyTorch, number for number.

float32, int8 and int4 agree with the compiled form in every bit, for they add in the same order. bfloat16 agrees within
rounding: the processor's pair product has an order of its own.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from draftproof.models.kernels.packing import (
    GROUP,
    Activations,
    PackedWeight,
    Precision,
    unpacked_integers,
)

_INT8_MAX = 127.0
_SMALLEST = 2.0**-100


def prepare(rows: torch.Tensor, padded_in: int, precision: Precision) -> Activations:
    """Rows of activations as products of a precision read them.

    Args:
        rows: float32 ``[rows, width]``, at most `padded_in` wide.
    """
    rows = functional.pad(rows, (0, padded_in - rows.shape[1]))
    if precision is Precision.FLOAT32:
        return Activations(rows, None, None)
    if precision is Precision.BFLOAT16:
        return Activations(rows.bfloat16().view(torch.int16), None, None)
    groups = rows.unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(-1)
    small, finite = largest < _SMALLEST, torch.isfinite(largest)
    usual = finite & ~small
    inverse = torch.where(usual, _INT8_MAX / torch.where(usual, largest, 1.0), 0.0)
    scales = torch.where(small, 0.0, largest / _INT8_MAX)
    scales = torch.where(finite, scales, torch.nan)
    whole = torch.where(usual[..., None], groups * inverse[..., None], 0.0).round()
    count = whole.sum(-1)
    sums = scales * count if precision is Precision.INT4 else (count * -128).int()
    return Activations(whole.to(torch.int8).flatten(1), scales, sums)


def product(acts: Activations, weight: PackedWeight) -> torch.Tensor:
    """``activations @ weight.T``, without bias: float32 ``[rows, out_features]``."""
    if weight.precision is Precision.FLOAT32:
        return _chain(acts.values, weight.unpack())
    if weight.precision is Precision.BFLOAT16:
        values = acts.values.view(torch.bfloat16)[:, : weight.in_features]
        return (values.double() @ weight.unpack().double().T).float()
    return _grouped(acts, weight)[:, : weight.out_features]


def _chain(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(values.shape[0], weight.shape[0], dtype=torch.float32)
    for channel in range(weight.shape[1]):
        total = fused_multiply_add(weight[None, :, channel], values[:, channel, None], total)
    return total


def _grouped(acts: Activations, weight: PackedWeight) -> torch.Tensor:
    assert acts.scales is not None
    assert acts.sums is not None
    whole, scales, minima = (part.flatten(0, 1) for part in unpacked_integers(weight.data, weight.precision))
    values = acts.values.unflatten(1, (-1, GROUP)).double()
    total = torch.zeros(values.shape[0], weight.padded_out, dtype=torch.float32)
    for group in range(values.shape[1]):
        number = (values[:, group] @ whole[:, group].double().T).float()
        both = scales[None, :, group] * acts.scales[:, group, None]
        total = fused_multiply_add(number, both, total)
        if weight.precision is Precision.INT4:
            total = fused_multiply_add(minima[None, :, group], acts.sums[:, group, None], total)
    return total


def fused_multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """``a * b + c`` rounded once, float32.

    In float64 the product is exact. Its sum with `c` is rounded to the odd neighbour where it is not exact, after which
    rounding to float32 is as good as rounding the exact sum (Boldo and Melquiond 2008, "Emulation of FMA and correctly
    rounded sums: proved algorithms using rounding to odd").
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.contiguous().view(torch.int64)
    to_odd = (error != 0) & torch.isfinite(error) & (bits % 2 == 0)
    outwards = (error > 0) == (total > 0)
    step = torch.where(outwards, 1, -1)
    return torch.where(to_odd, bits + step, bits).view(torch.float64).float()
