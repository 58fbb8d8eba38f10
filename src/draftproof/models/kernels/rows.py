"""Compiled work on single rows: norms, rotary turns, activations, sums.

Every sum has one order, given by the row's width alone: whole vectors of 16 from the first entry to the last into 16 running
sums, these along one fixed tree, then what is left, entry by entry. So a row's bits cannot depend on the company it is
worked on in.
"""

# The types of compiled functions are numba's business.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from draftproof.models.kernels.compiling import compiled
from draftproof.models.kernels.paged import _LANES, _LONG, _Code, _get, _narrow, _put, _widen

_ADDRESS, _COUNT = types.intp, types.int64
_GELU_CUBE = 0.044715
_GELU_ROOT = math.sqrt(2.0 / math.pi)


def _each_vector(builder: Any, count: Any) -> Any:
    """Loop over whole vectors; gives the index of each one's first entry by `_first`."""
    return cgutils.for_range(builder, count)


def _first(builder: Any, loop: Any) -> Any:
    return builder.mul(loop.index, _LONG(_LANES))


@intrinsic
def _sum_of_squares(context, row, vectors):
    """Sum of the squares of ``16 * vectors`` entries, float32."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        total = cgutils.alloca_once_value(builder, code.floats(0.0))
        with _each_vector(builder, arguments[1]) as loop:
            part = code.load(arguments[0], _first(builder, loop))
            builder.store(code.fma(part, part, builder.load(total)), total)
        return code.across(builder.load(total), builder.fadd)

    return types.float32(_ADDRESS, _COUNT), generate


@intrinsic
def _scale(context, row, weight, out, vectors, factor):
    """``out = row * factor * weight`` over ``16 * vectors`` entries."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        row, weight, out, vectors, factor = arguments
        everywhere = code.splat(factor)
        with _each_vector(builder, vectors) as loop:
            at = _first(builder, loop)
            scaled = builder.fmul(code.load(row, at), everywhere)
            code.store(builder.fmul(scaled, code.load(weight, at)), out, at)
        return context.get_dummy_value()

    return types.void(_ADDRESS, _ADDRESS, _ADDRESS, _COUNT, types.float32), generate


@intrinsic
def add(context, row, other, vectors):
    """``row += other`` over ``16 * vectors`` entries."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        row, other, vectors = arguments
        with _each_vector(builder, vectors) as loop:
            at = _first(builder, loop)
            code.store(builder.fadd(code.load(row, at), code.load(other, at)), row, at)
        return context.get_dummy_value()

    return types.void(_ADDRESS, _ADDRESS, _COUNT), generate


@intrinsic
def _turn(context, low, high, cos, sin, vectors):
    """Turns pairs of entries of `low` and `high` by their angles."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        low, high, cos, sin, vectors = arguments
        with _each_vector(builder, vectors) as loop:
            at = _first(builder, loop)
            x, y, c, s = (code.load(where, at) for where in (low, high, cos, sin))
            code.store(builder.fsub(builder.fmul(x, c), builder.fmul(y, s)), low, at)
            code.store(builder.fadd(builder.fmul(y, c), builder.fmul(x, s)), high, at)
        return context.get_dummy_value()

    return types.void(_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _COUNT), generate


def _silu_of(code: _Code, x: Any) -> Any:
    """``x / (1 + exp(-x))``, by an exponential that cannot overflow."""
    builder, one = code.builder, code.floats(1.0)
    shrunk = code.exp(builder.fsub(code.floats(-0.0), _magnitude(code, x)))
    negative = builder.fcmp_ordered("<", x, code.floats(0.0))
    return builder.fdiv(builder.fmul(x, builder.select(negative, shrunk, one)), builder.fadd(one, shrunk))


def _gelu_of(code: _Code, x: Any) -> Any:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))``."""
    builder = code.builder
    cube = builder.fmul(builder.fmul(x, x), x)
    inner = builder.fmul(code.fma(cube, code.floats(_GELU_CUBE), x), code.floats(_GELU_ROOT))
    grown = builder.fadd(code.floats(1.0), code.tanh(inner))
    return builder.fmul(builder.fmul(x, code.floats(0.5)), grown)


def _magnitude(code: _Code, x: Any) -> Any:
    """|x|; NaN stays NaN."""
    builder = code.builder
    negative = builder.fcmp_ordered("<", x, code.floats(0.0))
    return builder.select(negative, builder.fsub(code.floats(-0.0), x), x)


def _gate(activation: Any) -> Any:
    """Makes the function that lets 16 entries through their gates."""

    @intrinsic
    def gate(context, gates, values, out):
        """``out = activation(gates) * values``, 16 entries each."""

        def generate(context, builder, signature, arguments):
            code = _Code(builder)
            opened = activation(code, code.load(arguments[0], _LONG(0)))
            code.store(builder.fmul(opened, code.load(arguments[1], _LONG(0))), arguments[2], _LONG(0))
            return context.get_dummy_value()

        return types.void(_ADDRESS, _ADDRESS, _ADDRESS), generate

    return gate


gate_silu, gate_gelu = _gate(_silu_of), _gate(_gelu_of)


@intrinsic
def cap(context, row, vectors, limit):
    """``row = limit * tanh(row / limit)`` over ``16 * vectors`` entries."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        row, vectors, limit = arguments
        everywhere = code.splat(limit)
        with _each_vector(builder, vectors) as loop:
            at = _first(builder, loop)
            inner = code.tanh(builder.fdiv(code.load(row, at), everywhere))
            code.store(builder.fmul(inner, everywhere), row, at)
        return context.get_dummy_value()

    return types.void(_ADDRESS, _COUNT, types.float32), generate


_ZERO = np.float32(0)


@compiled()
def inverse_norm(row, count, epsilon):
    """``1 / sqrt(mean of the squares + epsilon)`` of `count` entries, float32."""
    whole = count // _LANES
    total = _sum_of_squares(row, whole)
    for i in range(whole * _LANES, count):
        entry = _get(row, i, _ZERO)
        total += entry * entry
    return np.float32(1.0) / np.float32(math.sqrt(total / np.float32(count) + np.float32(epsilon)))


@compiled()
def norm(row, weight, out, count, epsilon):
    """``out = row / rms(row) * weight``, `count` entries; `out` may be `row`."""
    factor = inverse_norm(row, count, epsilon)
    whole = count // _LANES
    _scale(row, weight, out, whole, factor)
    for i in range(whole * _LANES, count):
        _put(out, i, _get(row, i, _ZERO) * factor * _get(weight, i, _ZERO))


@compiled()
def turn(row, half, angles):
    """Rotate a head: entries ``i`` and ``i + half`` by the angle ``i``; `angles`: cos ``[half]``, then sin ``[half]``."""
    low, high, sin = row, row + half * 4, angles + half * 4
    whole = half // _LANES
    _turn(low, high, angles, sin, whole)
    for i in range(whole * _LANES, half):
        x, y = _get(low, i, _ZERO), _get(high, i, _ZERO)
        c, s = _get(angles, i, _ZERO), _get(sin, i, _ZERO)
        _put(low, i, x * c - y * s)
        _put(high, i, y * c + x * s)


@compiled()
def copy_wide(source, out, count, factor, kind):
    """``out = source * factor``: `source` stored in a kind, `out` float32."""
    for i in range(count):
        _put(out, i, _widen(_get(source, i, kind)) * factor)


@compiled()
def copy_narrow(source, out, count, kind):
    """Round float32 `source` to a kind."""
    for i in range(count):
        _put(out, i, _narrow(_get(source, i, _ZERO), kind))
