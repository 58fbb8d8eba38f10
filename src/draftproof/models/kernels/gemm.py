"""Row-invariant products with packed weights, compiled.

`prepare` brings one row of activations into the form that a precision multiplies; `product` multiplies some rows with one
tile of a weight (`packing` has the layouts). Both work on bare addresses, for use inside larger compiled functions.

Why a row's bits never depend on other rows. Rows go through a tile a few at a time, so that a weight that was loaded serves
several of them; but every output is a sum of its own, and its order is the same in every block:

* float32: one chain of fused multiply-adds over the input channels, from the first to the last;
* bfloat16: one chain of the processor's own pair products (`vdpbf16ps`) over pairs of channels; without it, a chain of fused
  multiply-adds in float32, from the first channel to the last;
* int8, int4: for each group of `GROUP` channels an exact int32 sum; these join, group by group, in a chain of float32
  fused multiply-adds: ``y = fma(float(sum), activation scale * weight scale, y)``, then for int4
  ``y = fma(minimum, activation scale * sum of activations, y)``.

The integer forms use `vpdpbusd` where there is AVX512-VNNI, `vpmaddubsw` where there is AVX2 (`gemm_avx2`), and plain vector
code elsewhere, with the same results.

NaN and infinity. A row of floats goes on as IEEE arithmetic has it. For int8 and int4 a NaN or an infinity anywhere in a
group makes the group's scale NaN, and so every output of this row NaN; other rows do not notice. What calls these functions
must look for NaN in what comes out, since the integers themselves cannot show it.
"""

# The types of compiled functions are numba's business.
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

from typing import Any

import torch
from llvmlite import ir  # type: ignore[import-not-found,import-untyped,unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from draftproof.models.kernels import gemm_avx2
from draftproof.models.kernels.compiling import compiled, target_features
from draftproof.models.kernels.packing import (
    GROUP,
    PANEL,
    TILE,
    Activations,
    PackedWeight,
    Precision,
    group_bytes,
)
from draftproof.models.kernels.paged import _Code

MOST_ROWS = 8
"""Rows for which there are blocks; how many share one walk through a tile is `_rows_together`."""
_PANELS = TILE // PANEL
_QUADS = GROUP // 4
_LINE = 64

_BYTE, _SHORT, _INT, _LONG = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_HALF, _FLOAT = ir.HalfType(), ir.FloatType()
_BYTES, _INTS, _FLOATS = (ir.VectorType(kind, PANEL) for kind in (_BYTE, _INT, _FLOAT))
_SHORTS, _HALVES = ir.VectorType(_SHORT, PANEL), ir.VectorType(_HALF, PANEL)

# Activations whose group is smaller than this throughout count as zeros: the inverse of their scale would be infinite.
_SMALLEST = 2.0**-100
_INT8_MAX = 127.0
# Adding 1.5 * 2**23 leaves the nearest whole number, ties to even, in the low bits of the sum.
_ROUND = 12582912.0
_ROUND_BITS = 0x4B400000
_INFINITY_BITS = 0x7F800000
_WHOLE = (Precision.INT8, Precision.INT4)
_PRECISIONS = {
    types.float32: Precision.FLOAT32,
    types.uint16: Precision.BFLOAT16,
    types.int8: Precision.INT8,
    types.uint8: Precision.INT4,
}


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat16, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


class _Lanes(_Code):
    """Writes LLVM code on vectors of `PANEL` lanes."""

    def __init__(self, builder: Any) -> None:
        super().__init__(builder)
        self.features = target_features()

    def fetch(self, address: Any) -> None:
        """Ask for the cache line at an address, into the second-level cache; harmless whatever the address."""
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(function, [self.builder.inttoptr(address, pointer), _INT(0), _INT(2), _INT(1)])

    def at(self, address: Any, offset: int, kind: Any) -> Any:
        """What lies `offset` bytes after an address."""
        there = self.builder.add(address, _LONG(offset))
        return self.builder.load(self.builder.inttoptr(there, kind.as_pointer()), align=1)

    def everywhere(self, address: Any, offset: int, kind: Any) -> Any:
        """The number that lies `offset` bytes after an address, in all lanes."""
        return self.splat(self.at(address, offset, kind))

    def keep(self, value: Any, address: Any, offset: int) -> None:
        there = self.builder.add(address, _LONG(offset))
        self.builder.store(value, self.builder.inttoptr(there, value.type.as_pointer()), align=1)

    def call(self, name: str, result: Any, arguments: list[Any]) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)

    @staticmethod
    def ints(number: int) -> Any:
        return ir.Constant(_INTS, [number] * PANEL)

    def halves(self, address: Any, offset: int) -> Any:
        """float16 numbers as float32, exactly (finite ones)."""
        if "f16c" in self.features:
            return self.builder.fpext(self.at(address, offset, _HALVES), _FLOATS)
        bits = self.builder.zext(self.at(address, offset, _SHORTS), _INTS)
        size = self.builder.shl(self.builder.and_(bits, self.ints(0x7FFF)), self.ints(13))
        size = self.builder.fmul(self.builder.bitcast(size, _FLOATS), self.floats(2.0**112))
        sign = self.builder.shl(self.builder.and_(bits, self.ints(0x8000)), self.ints(16))
        return self.builder.bitcast(self.builder.or_(self.builder.bitcast(size, _INTS), sign), _FLOATS)

    def quad_product(self, total: Any, weights: Any, activations: Any) -> Any:
        """``total + `` the products of four unsigned bytes of `weights` and four signed ones of `activations`, lane by lane."""
        if "avx512vnni" in self.features:
            kind = ir.VectorType(_BYTE, 64)
            parts = [self.builder.bitcast(part, kind) for part in (weights, activations)]
            return self.call("llvm.x86.avx512.vpdpbusd.512", _INTS, [total, *parts])
        for byte in range(4):
            weight = self.builder.and_(self.builder.lshr(weights, self.ints(8 * byte)), self.ints(255))
            high = self.builder.shl(activations, self.ints(24 - 8 * byte))
            activation = self.builder.ashr(high, self.ints(24))
            total = self.builder.add(total, self.builder.mul(weight, activation))
        return total

    def pair_product(self, total: Any, weights: Any, activations: Any) -> Any:
        """``total + `` the products of two bfloat16 of `weights` and two of `activations`, lane by lane."""
        if "avx512bf16" in self.features:
            kind = ir.VectorType(_BFloat(), 32)
            parts = [self.builder.bitcast(part, kind) for part in (weights, activations)]
            return self.call("llvm.x86.avx512bf16.dpbf16ps.512", _FLOATS, [total, *parts])
        for widen in (self._low_half, self._high_half):
            total = self.fma(widen(weights), widen(activations), total)
        return total

    def _low_half(self, pairs: Any) -> Any:
        return self.builder.bitcast(self.builder.shl(pairs, self.ints(16)), _FLOATS)

    def _high_half(self, pairs: Any) -> Any:
        return self.builder.bitcast(self.builder.and_(pairs, self.ints(0xFFFF0000)), _FLOATS)


def _rows_together(precision: Precision) -> int:
    """Rows that share one walk through a tile: their sums fill the vector registers.

    AVX512 has 32 registers of 16 lanes, and an integer sum needs two, one for the group's integers and one for the float chain.
    Others have 16 of 8 lanes or fewer; there the integer forms keep the float chain in memory (`gemm_avx2`).
    """
    if precision in _WHOLE:
        return 6
    return 8 if "avx512f" in target_features() else 2


# --- products -----------------------------------------------------------------------------------------------------


def _float_group(code: _Lanes, weights: Any, values: list[Any], totals: Any, paired: bool) -> None:
    """Adds one group's part to float sums."""
    multiply = code.pair_product if paired else code.fma
    for step in range(GROUP // 2 if paired else GROUP):
        kind = _INTS if paired else _FLOATS
        lanes = [code.at(weights, (step * _PANELS + panel) * _LINE, kind) for panel in range(_PANELS)]
        for row, start in enumerate(values):
            activation = code.everywhere(start, step * 4, _INT if paired else _FLOAT)
            for panel in range(_PANELS):
                if paired:
                    totals[row][panel] = multiply(totals[row][panel], lanes[panel], activation)
                else:
                    totals[row][panel] = multiply(lanes[panel], activation, totals[row][panel])


def _int_group(
    code: _Lanes, weights: Any, values: list[Any], scales: list[Any], sums: list[Any], totals: Any, four: bool
) -> None:
    """Adds one group's part to the float sums of an integer precision."""
    builder, rows = code.builder, range(len(values))
    start = [code.ints(0) if four else code.everywhere(sums[row], 0, _INT) for row in rows]
    whole = [[start[row]] * _PANELS for row in rows]
    stored = _QUADS // 2 if four else _QUADS
    for quad in range(stored):
        lanes = [code.at(weights, (panel * stored + quad) * _LINE, _INTS) for panel in range(_PANELS)]
        parts = [(quad, lanes)]
        if four:
            mask = code.ints(0x0F0F0F0F)
            low = [builder.and_(lane, mask) for lane in lanes]
            high = [builder.and_(builder.lshr(lane, code.ints(4)), mask) for lane in lanes]
            parts = [(quad, low), (quad + stored, high)]
        for place, bytes_ in parts:
            for row in rows:
                activation = code.everywhere(values[row], place * 4, _INT)
                for panel in range(_PANELS):
                    whole[row][panel] = code.quad_product(whole[row][panel], bytes_[panel], activation)
    after = stored * _PANELS * _LINE
    for panel in range(_PANELS):
        scale = code.halves(weights, after + panel * PANEL * 2)
        minimum = code.halves(weights, after + TILE * 2 + panel * PANEL * 2) if four else None
        for row in rows:
            both = builder.fmul(scale, code.everywhere(scales[row], 0, _FLOAT))
            number = builder.sitofp(whole[row][panel], _FLOATS)
            total = code.fma(number, both, totals[row][panel])
            if four:
                total = code.fma(minimum, code.everywhere(sums[row], 0, _FLOAT), total)
            totals[row][panel] = total


class _WideSums:
    """Writes the code of a block of rows: the float32 sums of `rows` rows with a tile, and what adds a group to them."""

    def __init__(self, code: _Lanes, rows: int, precision: Precision) -> None:
        self._code, self._precision = code, precision
        self._places = [
            [cgutils.alloca_once_value(code.builder, code.floats(0.0)) for _ in range(_PANELS)]
            for _ in range(rows)
        ]

    def add_group(self, weights: Any, values: list[Any], scales: list[Any], sums: list[Any]) -> None:
        """Add one group's part, from the addresses of the tile's group and of every row's."""
        code, builder = self._code, self._code.builder
        totals = [[builder.load(place) for place in line] for line in self._places]
        if self._precision in _WHOLE:
            four = self._precision is Precision.INT4
            _int_group(code, weights, values, scales, sums, totals, four)
        else:
            _float_group(code, weights, values, totals, self._precision is Precision.BFLOAT16)
        for line, places in zip(totals, self._places, strict=True):
            for total, place in zip(line, places, strict=True):
                builder.store(total, place)

    def write(self, row: int, address: Any) -> None:
        """Store a row's sums: float32 ``[TILE]``."""
        for panel, place in enumerate(self._places[row]):
            self._code.keep(self._code.builder.load(place), address, panel * _LINE)


def _block(rows: int) -> Any:
    """Makes the function that multiplies `rows` rows with a tile."""

    @intrinsic
    def block(context, weights, groups, values, scales, sums, out, out_stride, ahead, lines, kind):
        """``out[r, :] = activations[r] @ tile.T`` for `rows` rows from the given addresses on.

        Meanwhile, `lines` cache lines for every group are fetched from memory, from `ahead` on.
        """

        def generate(context, builder, signature, arguments):
            code, precision = _Lanes(builder), _PRECISIONS[signature.args[9]]
            weights, groups, values, scales, sums, out, out_stride, ahead, lines, _ = arguments
            whole = precision in _WHOLE
            if rows > _rows_together(precision):
                return context.get_dummy_value()  # never called
            size = {Precision.FLOAT32: 4, Precision.BFLOAT16: 2}.get(precision, 1)
            step = group_bytes(precision)
            together = (
                gemm_avx2.NarrowSums(builder, rows, precision is Precision.INT4)
                if whole and gemm_avx2.available()
                else _WideSums(code, rows, precision)
            )
            with cgutils.for_range(builder, groups) as loop:
                here = builder.add(weights, builder.mul(loop.index, _LONG(step)))
                fetched = builder.mul(loop.index, lines)
                with cgutils.for_range(builder, lines) as line:
                    there = builder.mul(builder.add(fetched, line.index), _LONG(_LINE))
                    code.fetch(builder.add(ahead, there))
                value, scale, total = [], [], []
                for row in range(rows):
                    number = builder.add(builder.mul(groups, _LONG(row)), loop.index)
                    value.append(builder.add(values, builder.mul(number, _LONG(GROUP * size))))
                    scale.append(builder.add(scales, builder.mul(number, _LONG(4))))
                    total.append(builder.add(sums, builder.mul(number, _LONG(4))))
                together.add_group(here, value, scale, total)
            for row in range(rows):
                there = builder.add(out, builder.mul(out_stride, _LONG(row * 4)))
                together.write(row, there)
            return context.get_dummy_value()

        numbers = [types.intp] * 9
        return types.void(*numbers, kind), generate

    return block


_block_1, _block_2, _block_3, _block_4 = (_block(rows) for rows in range(1, 5))
_block_5, _block_6, _block_7, _block_8 = (_block(rows) for rows in range(5, MOST_ROWS + 1))


@intrinsic
def tile_bytes(context, padded_in, kind):
    """Bytes of one tile of a packed weight."""

    def generate(context, builder, signature, arguments):
        step = group_bytes(_PRECISIONS[signature.args[1]])
        return builder.mul(builder.udiv(arguments[0], _LONG(GROUP)), _LONG(step))

    return types.intp(types.intp, kind), generate


@intrinsic
def value_bytes(context, kind):
    """Bytes of one prepared activation."""

    def generate(context, builder, signature, arguments):
        precision = _PRECISIONS[signature.args[0]]
        return _LONG({Precision.FLOAT32: 4, Precision.BFLOAT16: 2}.get(precision, 1))

    return types.intp(kind), generate


@intrinsic
def most_rows(context, kind):
    """Rows of the largest block."""

    def generate(context, builder, signature, arguments):
        return _LONG(_rows_together(_PRECISIONS[signature.args[0]]))

    return types.intp(kind), generate


@compiled()
def product_ahead(
    weight, wscale, padded_in, tile, values, scales, sums, first_row, rows, out, out_stride, ahead, kind
):
    """``out[r, 0:TILE] = activations[first_row + r] @ weight[tile * TILE : (tile + 1) * TILE].T``, without bias.

    Args:
        weight, wscale: `PackedWeight.address` (its first two).
        padded_in: `PackedWeight.padded_in`, also the row length of the activations.
        tile: which output channels.
        values, scales, sums: `Activations.address`, filled by `prepare`.
        first_row, rows: which rows; any number from 0 up, and no row depends on it.
        out, out_stride: address of the float32 that receives the tile's first channel for `first_row`, and numbers from row
            to row.
        ahead: address of the tile (of as many bytes) that this thread will multiply with next. It is fetched from memory
            meanwhile, a part in each block of rows, for one product takes about as long as memory does to bring another
            tile. Any address will do.
        kind: `PackedWeight.kind`.
    """
    groups = padded_in // GROUP
    tile_at = weight + tile * tile_bytes(padded_in, kind)
    end = first_row + rows
    blocks = (rows + most_rows(kind) - 1) // most_rows(kind)
    tile_lines = tile_bytes(padded_in, kind) // _LINE
    lines = (tile_lines + blocks * groups - 1) // (blocks * groups)
    row, at = first_row, ahead
    while row < end:
        # Blocks of about one size: a block for a single left-over row would be dear.
        some = (end - row + blocks - 1) // blocks
        blocks -= 1
        value = values + row * padded_in * value_bytes(kind)
        scale, total = scales + row * groups * 4, sums + row * groups * 4
        there = out + (row - first_row) * out_stride * 4
        if some == 8:
            _block_8(tile_at, groups, value, scale, total, there, out_stride, at, lines, kind)
        elif some == 7:
            _block_7(tile_at, groups, value, scale, total, there, out_stride, at, lines, kind)
        elif some == 6:
            _block_6(tile_at, groups, value, scale, total, there, out_stride, at, lines, kind)
        elif some == 5:
            _block_5(tile_at, groups, value, scale, total, there, out_stride, at, lines, kind)
        elif some == 4:
            _block_4(tile_at, groups, value, scale, total, there, out_stride, at, lines, kind)
        elif some == 3:
            _block_3(tile_at, groups, value, scale, total, there, out_stride, at, lines, kind)
        elif some == 2:
            _block_2(tile_at, groups, value, scale, total, there, out_stride, at, lines, kind)
        else:
            _block_1(tile_at, groups, value, scale, total, there, out_stride, at, lines, kind)
        row += some
        at += lines * groups * _LINE
        if at >= ahead + tile_lines * _LINE:
            lines = 0


@compiled()
def product(weight, wscale, padded_in, tile, values, scales, sums, first_row, rows, out, out_stride, kind):
    """`product_ahead`, when the tile that comes next is the next one in memory."""
    ahead = weight + (tile + 1) * tile_bytes(padded_in, kind)
    product_ahead(
        weight, wscale, padded_in, tile, values, scales, sums, first_row, rows, out, out_stride, ahead, kind
    )


# --- activations --------------------------------------------------------------------------------------------------


def _loaded(code: _Lanes, source: Any, left: Any) -> list[Any]:
    """The two vectors of a group; zeros past its `left` entries, which are not touched."""
    builder, found = code.builder, []
    for half in range(2):
        lanes = ir.Constant(_INTS, [half * PANEL + lane for lane in range(PANEL)])
        inside = builder.icmp_signed("<", lanes, code.splat(builder.trunc(left, _INT)))
        there = builder.inttoptr(builder.add(source, _LONG(half * _LINE)), _FLOATS.as_pointer())
        found.append(
            code.call("llvm.masked.load.v16f32.p0", _FLOATS, [there, _INT(1), inside, code.floats(0.0)])
        )
    return found


@intrinsic
def _prepare_group(context, source, left, values, scales, sums, kind):
    """Prepares `GROUP` activations, of which `left` are there, to the given addresses."""

    def generate(context, builder, signature, arguments):
        code, precision = _Lanes(builder), _PRECISIONS[signature.args[5]]
        source, left, values, scales, sums, _ = arguments
        group = _loaded(code, source, left)
        if precision is Precision.FLOAT32:
            for half, numbers in enumerate(group):
                code.keep(numbers, values, half * _LINE)
        elif precision is Precision.BFLOAT16:
            for half, numbers in enumerate(group):
                code.keep(_rounded_to_bfloat(code, numbers), values, half * PANEL * 2)
        else:
            _quantise(code, group, values, scales, sums, precision is Precision.INT4)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64, types.intp, types.intp, types.intp, kind), generate


def _rounded_to_bfloat(code: _Lanes, numbers: Any) -> Any:
    """The nearest bfloat16, ties to even, as its bits; NaN stays NaN."""
    builder = code.builder
    bits = builder.bitcast(numbers, _INTS)
    odd = builder.and_(builder.lshr(bits, code.ints(16)), code.ints(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, code.ints(0x7FFF))), code.ints(16))
    is_nan = builder.fcmp_unordered("uno", numbers, numbers)
    return builder.trunc(builder.select(is_nan, code.ints(0x7FC0), rounded), _SHORTS)


def _quantise(code: _Lanes, group: list[Any], values: Any, scales: Any, sums: Any, four: bool) -> None:
    builder = code.builder

    def larger(a: Any, b: Any) -> Any:
        return builder.select(builder.icmp_signed(">", a, b), a, b)

    # Magnitudes are compared by their bits: in that order NaN comes above infinity, and infinity above all numbers.
    sizes = [builder.and_(builder.bitcast(numbers, _INTS), code.ints(0x7FFFFFFF)) for numbers in group]
    bits = code.across(larger(*sizes), larger)
    largest = builder.bitcast(bits, _FLOAT)
    one = ir.Constant(_FLOAT, 1.0)
    zero, most, nan = (ir.Constant(_FLOAT, number) for number in (0.0, _INT8_MAX, float("nan")))
    small = builder.fcmp_ordered("<", largest, ir.Constant(_FLOAT, _SMALLEST))
    finite = builder.icmp_signed("<", bits, _INT(_INFINITY_BITS))
    usual = builder.and_(finite, builder.not_(small))
    divisor = builder.select(usual, largest, one)
    inverse = builder.select(usual, builder.fdiv(most, divisor), zero)
    scale = builder.select(small, zero, builder.fdiv(largest, most))
    scale = builder.select(finite, scale, nan)
    builder.store(scale, builder.inttoptr(scales, _FLOAT.as_pointer()))
    total = code.ints(0)
    for half, numbers in enumerate(group):
        shifted = builder.fadd(builder.fmul(numbers, code.splat(inverse)), code.floats(_ROUND))
        whole = builder.sub(builder.bitcast(shifted, _INTS), code.ints(_ROUND_BITS))
        code.keep(builder.trunc(whole, _BYTES), values, half * PANEL)
        total = builder.add(total, whole)
    count = code.across(total, builder.add)
    if four:
        number = builder.fmul(scale, builder.sitofp(count, _FLOAT))
        builder.store(number, builder.inttoptr(sums, _FLOAT.as_pointer()))
    else:
        builder.store(builder.mul(count, _INT(-128)), builder.inttoptr(sums, _INT.as_pointer()))


@compiled()
def prepare(source, width, padded_in, values, scales, sums, row, kind):
    """Bring one row of activations into the form that products of a precision read.

    float32 stays, bfloat16 and the 8-bit integers (both int8 and int4 weights use them) are rounded to the nearest, ties to
    even; an integer group's scale is its largest magnitude over 127. See the file's head for NaN and infinity.

    Args:
        source: address of the row, float32 ``[width]``.
        width, padded_in: the weight's `in_features`, or fewer, and `padded_in`; what lies between becomes zero.
        values, scales, sums, row: `Activations.address`, and which of its rows to fill.
        kind: `PackedWeight.kind`.
    """
    groups = padded_in // GROUP
    to = values + row * padded_in * value_bytes(kind)
    for group in range(groups):
        done = group * GROUP
        place = (row * groups + group) * 4
        _prepare_group(
            source + done * 4,
            width - done,
            to + done * value_bytes(kind),
            scales + place,
            sums + place,
            kind,
        )


# --- on tensors ---------------------------------------------------------------------------------------------------


@compiled()
def _prepare_rows(source, stride, width, padded_in, values, scales, sums, rows, kind):
    for row in range(rows):
        prepare(source + row * stride * 4, width, padded_in, values, scales, sums, row, kind)


@compiled()
def _product_tiles(weight, wscale, padded_in, tiles, values, scales, sums, rows, out, out_stride, kind):
    for tile in range(tiles):
        there = out + tile * TILE * 4
        product(weight, wscale, padded_in, tile, values, scales, sums, 0, rows, there, out_stride, kind)


def prepared(rows: torch.Tensor, weight: PackedWeight) -> Activations:
    """Activations for products with a weight.

    Args:
        rows: float32 ``[rows, in_features]`` on the CPU, entries of a row side by side.
        weight: what they will be multiplied with.
    """
    count, width = rows.shape
    if rows.dtype != torch.float32 or width != weight.in_features or rows.stride(-1) != 1:
        raise ValueError(f"rows are float32 [n, {weight.in_features}], got {rows.dtype} {tuple(rows.shape)}")
    acts = Activations.empty(count, weight.padded_in, weight.precision)
    _prepare_rows(
        rows.data_ptr(), rows.stride(0), width, weight.padded_in, *acts.address(), count, weight.kind
    )
    return acts


def multiply(rows: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    """``rows @ weight.T + bias`` on one thread.

    Args:
        rows: float32 ``[rows, in_features]``.

    Returns:
        float32 ``[rows, out_features]``.
    """
    acts = prepared(rows.contiguous(), weight)
    data, scales, _ = weight.address()
    out = torch.empty(rows.shape[0], weight.padded_out, dtype=torch.float32)
    _product_tiles(
        data,
        scales,
        weight.padded_in,
        weight.tiles,
        *acts.address(),
        rows.shape[0],
        out.data_ptr(),
        weight.padded_out,
        weight.kind,
    )
    if weight.bias is not None:
        out += weight.bias
    return out[:, : weight.out_features]
