"""Compiled row-invariant attention over pages: the machine code behind `kernels`.

Why a row's bits depend on its own sequence alone. Query rows are handled a few at a time, so that a key block is loaded
once for several of them; but each row has sums of its own, and every one of them has one order:

* a score is a chain of fused multiply-adds over the key's entries, from the first to the last;
* blocks of `BLOCK` positions, anchored at 0, are gone through in order; in each the row's visible weights (hidden lanes are
  exactly 0) are added up lane by lane along one fixed tree;
* the running maximum, sum and output are carried from block to block; a row skips a block of which it sees nothing;
* an output entry is a chain of fused multiply-adds over the row's visible positions, in order. Whether a stretch of the
  chain runs together with other rows' or by itself changes nothing about it.

Vector operations are spelled out in LLVM's own terms, with explicit fused multiply-adds and without leave to reorder, so
the same sums come out wherever the compiler keeps its registers. Only visible keys have an effect, whatever else lies in
the pages: hidden scores are replaced, not multiplied away, and hidden values are not touched.

Memory is addressed by numbers (`tensor.data_ptr()`), which costs nothing to hand over. `kind` is a zero of the stored
type: float32, or uint16 for bfloat16.
"""

# The types of compiled functions are numba's business.
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-not-found,import-untyped,unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from draftproof.models.kernels.compiling import compiled, target_features

BLOCK = 64
"""Positions in a page."""
TOGETHER = 6
"""Query rows that share one walk through a key block: their sums fill the vector registers."""
_LANES = 16
_CACHE_LINE = 64
_PARTS = BLOCK // _LANES

_FLOAT, _HALF, _INT, _LONG = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOATS, _HALVES, _INTS = (ir.VectorType(kind, _LANES) for kind in (_FLOAT, _HALF, _INT))

_LOG2E = 1.4426950408889634
# log(2) in two parts: the first has few enough bits that its product with a small whole number is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2.0) - _LN2_HIGH
# Adding 1.5 * 2**23 leaves the nearest whole number in the low bits of the sum.
_ROUND = 12582912.0
_EXP_LOWEST = -87.0
_EXP_TERMS = [1.0 / math.factorial(power) for power in range(8)]
# tanh(x) / x in powers of x * x, for |x| below the limit: relative error 1e-7.
_TANH_TERMS = [1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925]
_TANH_LIMIT = 0.35


# --- single numbers -----------------------------------------------------------------------------------------------


@intrinsic
def _address(context, array):
    """Where an array's first entry lies."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, _LONG)

    return types.intp(array), generate


@intrinsic
def _size(context, kind):
    """Bytes of one entry of a kind."""

    def generate(context, builder, signature, arguments):
        return _LONG(kind.bitwidth // 8)

    return types.int64(kind), generate


@intrinsic
def _get(context, address, index, kind):
    """Entry `index` of memory of a kind."""

    def generate(context, builder, signature, arguments):
        element = context.get_value_type(signature.return_type)
        return builder.load(_Code(builder).pointer(arguments[0], arguments[1], element))

    return kind(types.intp, types.intp, kind), generate


@intrinsic
def _put(context, address, index, value):
    """Set entry `index` of memory of the value's kind."""

    def generate(context, builder, signature, arguments):
        element = context.get_value_type(signature.args[2])
        builder.store(arguments[2], _Code(builder).pointer(arguments[0], arguments[1], element))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, value), generate


@intrinsic
def _widen(context, value):
    """A stored number as float32, exactly."""

    def generate(context, builder, signature, arguments):
        if signature.args[0] == types.float32:
            return arguments[0]
        return builder.bitcast(builder.shl(builder.zext(arguments[0], _INT), _INT(16)), _FLOAT)

    return types.float32(value), generate


@intrinsic
def _narrow(context, value, kind):
    """A float32 as a number of a kind, to the nearest, ties to even."""

    def generate(context, builder, signature, arguments):
        number = arguments[0]
        if signature.return_type == types.float32:
            return number
        bits = builder.bitcast(number, _INT)
        odd = builder.and_(builder.lshr(bits, _INT(16)), _INT(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, _INT(0x7FFF))), _INT(16))
        is_nan = builder.fcmp_unordered("uno", number, number)
        return builder.trunc(builder.select(is_nan, _INT(0x7FC0), rounded), _HALF)

    return kind(types.float32, kind), generate


@intrinsic
def _take(context, address):
    """Add one to a counter that threads share; gives what it was."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.atomic_rmw("add", pointer, _LONG(1), "monotonic")

    return types.int64(types.intp), generate


# --- vectors ------------------------------------------------------------------------------------------------------


class _Code:
    """Writes LLVM code on vectors of `_LANES` float32."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def pointer(self, address: Any, index: Any, element: Any, vector: Any = None) -> Any:
        """Pointer to entry `index`, as one element or as the vector that begins there."""
        size = {_FLOAT: 4, _HALF: 2}[element]
        at = self.builder.add(address, self.builder.mul(index, _LONG(size)))
        return self.builder.inttoptr(at, (vector or element).as_pointer())

    def load(self, address: Any, index: Any, half: bool = False) -> Any:
        """A vector, widened to float32."""
        if not half:
            return self.builder.load(self.pointer(address, index, _FLOAT, _FLOATS), align=4)
        short = self.builder.load(self.pointer(address, index, _HALF, _HALVES), align=2)
        wide = self.builder.shl(self.builder.zext(short, _INTS), self._ints(16))
        return self.builder.bitcast(wide, _FLOATS)

    def store(self, vector: Any, address: Any, index: Any) -> None:
        self.builder.store(vector, self.pointer(address, index, _FLOAT, _FLOATS), align=4)

    def prefetch(self, address: Any) -> None:
        """Ask for the cache line at an address; harmless whatever the address."""
        pointer, number = ir.IntType(8).as_pointer(), _INT
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        where = self.builder.inttoptr(address, pointer)
        self.builder.call(function, [where, number(0), number(3), number(1)])

    def scalar(self, address: Any, index: Any) -> Any:
        return self.builder.load(self.pointer(address, index, _FLOAT))

    def splat(self, scalar: Any) -> Any:
        """All lanes the same."""
        kind = _FLOATS if scalar.type == _FLOAT else _INTS
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, _INT(0))
        return self.builder.shuffle_vector(
            one, ir.Constant(kind, ir.Undefined), ir.Constant(_INTS, [0] * _LANES)
        )

    @staticmethod
    def floats(number: float) -> Any:
        return ir.Constant(_FLOATS, [float(np.float32(number))] * _LANES)

    @staticmethod
    def _ints(number: int) -> Any:
        return ir.Constant(_INTS, [number] * _LANES)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.fma.v16f32")
        return self.builder.call(function, [a, b, c])

    def larger(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def across(self, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
        """All lanes joined to one number, halves with halves."""
        for width in (8, 4, 2, 1):
            lanes = ir.Constant(_INTS, [(lane + width) % _LANES for lane in range(_LANES)])
            vector = join(vector, self.builder.shuffle_vector(vector, vector, lanes))
        return self.builder.extract_element(vector, _INT(0))

    def visible(self, part: int, low: Any, high: Any) -> Any:
        """Which lanes of a block's part lie in ``[low, high)``."""
        lanes = ir.Constant(_INTS, [part * _LANES + lane for lane in range(_LANES)])
        after = self.builder.icmp_signed(">=", lanes, low)
        return self.builder.and_(after, self.builder.icmp_signed("<", lanes, high))

    def polynomial(self, x: Any, terms: Sequence[float]) -> Any:
        value = self.floats(terms[-1])
        for term in reversed(terms[:-1]):
            value = self.fma(value, x, self.floats(term))
        return value

    def exp(self, x: Any) -> Any:
        """exp(x) for x <= 0 within 2e-7 of itself; 0 below `_EXP_LOWEST`; exactly 1 at 0; NaN stays NaN."""
        builder = self.builder
        rounded = self.fma(x, self.floats(_LOG2E), self.floats(_ROUND))
        whole = builder.fsub(rounded, self.floats(_ROUND))
        rest = self.fma(whole, self.floats(-_LN2_HIGH), x)
        rest = self.fma(whole, self.floats(-_LN2_LOW), rest)
        exponent = builder.shl(builder.add(builder.bitcast(rounded, _INTS), self._ints(127)), self._ints(23))
        value = builder.fmul(self.polynomial(rest, _EXP_TERMS), builder.bitcast(exponent, _FLOATS))
        return builder.select(builder.fcmp_ordered("<", x, self.floats(_EXP_LOWEST)), self.floats(0.0), value)

    def tanh(self, x: Any) -> Any:
        """tanh(x), absolute error 1e-7, relative 3e-7 near 0."""
        builder = self.builder
        square = builder.fmul(x, x)
        small = builder.fmul(x, self.polynomial(square, _TANH_TERMS))
        magnitude = self.larger(x, builder.fsub(self.floats(-0.0), x))
        shrunk = self.exp(builder.fmul(magnitude, self.floats(-2.0)))
        one = self.floats(1.0)
        large = builder.fdiv(builder.fsub(one, shrunk), builder.fadd(one, shrunk))
        negative = builder.fcmp_ordered("<", x, self.floats(0.0))
        large = builder.select(negative, builder.fsub(self.floats(-0.0), large), large)
        return builder.select(builder.fcmp_ordered("<", magnitude, self.floats(_TANH_LIMIT)), small, large)


def _pieces(rows: int, vectors: int) -> list[range]:
    """Which vectors of all rows are summed in one loop, so that the sums stay in registers.

    AVX512 has 32 registers of 16 lanes, which hold them all; others have 16 of 8 or fewer.
    """
    together = vectors if "avx512f" in target_features() else max(1, TOGETHER // rows)
    return [range(part, min(part + together, vectors)) for part in range(0, vectors, together)]


def _scorer(rows: int) -> Any:
    """Makes the function that scores `rows` queries against a key block."""

    @intrinsic
    def score(context, queries, width, keys, ahead, scores, dim, kind):
        """``scores[r, :] = queries[r, :dim] @ keys``; queries ``[rows, width]``, keys ``[dim, BLOCK]``, scores ``[rows, BLOCK]``.

        Meanwhile the keys of the next block, at `ahead`, are fetched.
        """

        def generate(context, builder, signature, arguments):
            code, half = _Code(builder), signature.args[6] != types.float32
            queries, width, keys, ahead, scores, dim, _ = arguments
            size = 2 if half else 4
            starts = [builder.mul(width, _LONG(row)) for row in range(rows)]
            for piece, columns in enumerate(_pieces(rows, _PARTS)):
                sums = {
                    (row, part): cgutils.alloca_once_value(builder, code.floats(0.0))
                    for row in range(rows)
                    for part in columns
                }
                with cgutils.for_range(builder, dim) as loop:
                    line = builder.mul(loop.index, _LONG(BLOCK))
                    parts = {
                        part: code.load(keys, builder.add(line, _LONG(part * _LANES)), half)
                        for part in columns
                    }
                    for byte in range(0, BLOCK * size if piece == 0 else 0, _CACHE_LINE):
                        there = builder.add(builder.mul(line, _LONG(size)), _LONG(byte))
                        code.prefetch(builder.add(ahead, there))
                    for row in range(rows):
                        query = code.splat(code.scalar(queries, builder.add(starts[row], loop.index)))
                        for part in columns:
                            total = sums[row, part]
                            builder.store(code.fma(query, parts[part], builder.load(total)), total)
                for (row, part), total in sums.items():
                    code.store(builder.load(total), scores, _LONG(row * BLOCK + part * _LANES))
            return context.get_dummy_value()

        signature = types.void(types.intp, types.intp, types.intp, types.intp, types.intp, types.intp, kind)
        return signature, generate

    return score


def _mixer(rows: int, vectors: int) -> Any:
    """Makes the function that adds weighted values to `rows` outputs, ``vectors * _LANES`` columns of them."""

    @intrinsic
    def mix(context, weights, values, ahead, out, width, first, end, kind):
        """``out[r, :] += weights[r, first:end] @ values[first:end, :]``; values ``[BLOCK, width]``, out ``[rows, width]``.

        Meanwhile the values of the next block, at `ahead`, are fetched.
        """

        def generate(context, builder, signature, arguments):
            code, half = _Code(builder), signature.args[7] != types.float32
            weights, values, ahead, out, width, first, end, _ = arguments
            size = 2 if half else 4
            for piece, columns in enumerate(_pieces(rows, vectors)):
                places = {
                    (row, part): builder.add(builder.mul(width, _LONG(row)), _LONG(part * _LANES))
                    for row in range(rows)
                    for part in columns
                }
                sums = {
                    key: cgutils.alloca_once_value(builder, code.load(out, place))
                    for key, place in places.items()
                }
                with cgutils.for_range_slice(builder, first, end, _LONG(1), _LONG) as (position, _):
                    line = builder.mul(position, width)
                    parts = {
                        part: code.load(values, builder.add(line, _LONG(part * _LANES)), half)
                        for part in columns
                    }
                    for byte in range(0, vectors * _LANES * size if piece == 0 else 0, _CACHE_LINE):
                        there = builder.add(builder.mul(line, _LONG(size)), _LONG(byte))
                        code.prefetch(builder.add(ahead, there))
                    for row in range(rows):
                        at = builder.add(position, _LONG(row * BLOCK))
                        weight = code.splat(code.scalar(weights, at))
                        for part in columns:
                            total = sums[row, part]
                            builder.store(code.fma(weight, parts[part], builder.load(total)), total)
                for key, place in places.items():
                    code.store(builder.load(sums[key]), out, place)
            return context.get_dummy_value()

        signature = types.void(
            types.intp, types.intp, types.intp, types.intp, types.intp, types.int64, types.int64, kind
        )
        return signature, generate

    return mix


_score_1, _score_2, _score_3, _score_4, _score_5, _score_6 = (_scorer(rows) for rows in range(1, 7))
_mix_1, _mix_2, _mix_3, _mix_4, _mix_5, _mix_6 = (_mixer(rows, _PARTS) for rows in range(1, 7))
_mix_narrow = _mixer(1, 1)


@intrinsic
def _cap(context, scores, softcap):
    """Soft-caps the scores of one row in a block."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        cap = code.splat(arguments[1])
        for part in range(_PARTS):
            at = _LONG(part * _LANES)
            score = builder.fdiv(code.load(arguments[0], at), cap)
            code.store(builder.fmul(code.tanh(score), cap), arguments[0], at)
        return context.get_dummy_value()

    return types.void(types.intp, types.float32), generate


@intrinsic
def _weigh(context, scores, low, high, state):
    """Turns one row's scores in a block into weights, and brings the row's running maximum and sum up to date.

    `state` holds the maximum and the sum; the third number becomes the factor by which earlier weights shrink.
    """

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        scores, low, high, state = arguments
        low, high = (code.splat(builder.trunc(limit, _INT)) for limit in (low, high))
        parts = []
        for part in range(_PARTS):
            score = code.load(scores, _LONG(part * _LANES))
            hidden = code.floats(-math.inf)
            parts.append(builder.select(code.visible(part, low, high), score, hidden))
        best = code.larger(code.larger(parts[0], parts[1]), code.larger(parts[2], parts[3]))
        before, total = code.scalar(state, _LONG(0)), code.scalar(state, _LONG(1))
        highest = code.larger(code.across(best, code.larger), before)
        lowest = ir.Constant(_FLOAT, -math.inf)
        nothing = builder.fcmp_ordered("==", highest, lowest)  # only scores of -inf so far: all weights are 0
        spread = code.splat(builder.select(nothing, ir.Constant(_FLOAT, 0.0), highest))
        weights = [code.exp(builder.fsub(part, spread)) for part in parts]
        for part, weight in enumerate(weights):
            code.store(weight, scores, _LONG(part * _LANES))
        halves = [builder.fadd(weights[0], weights[1]), builder.fadd(weights[2], weights[3])]
        added = code.across(builder.fadd(*halves), builder.fadd)
        shrink = code.exp(builder.fsub(code.splat(before), spread))
        grown = code.fma(code.splat(total), shrink, code.splat(added))
        grown, shrink = (builder.extract_element(vector, _INT(0)) for vector in (grown, shrink))
        for index, number in enumerate((highest, grown, shrink)):
            builder.store(number, code.pointer(state, _LONG(index), _FLOAT))
        return context.get_dummy_value()

    return types.void(types.intp, types.int64, types.int64, types.intp), generate


# --- attention ----------------------------------------------------------------------------------------------------


@compiled()
def _score(rows, queries, width, keys, ahead, scores, dim, kind):
    if rows == 6:
        _score_6(queries, width, keys, ahead, scores, dim, kind)
    elif rows == 5:
        _score_5(queries, width, keys, ahead, scores, dim, kind)
    elif rows == 4:
        _score_4(queries, width, keys, ahead, scores, dim, kind)
    elif rows == 3:
        _score_3(queries, width, keys, ahead, scores, dim, kind)
    elif rows == 2:
        _score_2(queries, width, keys, ahead, scores, dim, kind)
    else:
        _score_1(queries, width, keys, ahead, scores, dim, kind)


@compiled()
def _mix_columns(rows, weights, values, ahead, out, width, first, end, kind):
    if rows == 6:
        _mix_6(weights, values, ahead, out, width, first, end, kind)
    elif rows == 5:
        _mix_5(weights, values, ahead, out, width, first, end, kind)
    elif rows == 4:
        _mix_4(weights, values, ahead, out, width, first, end, kind)
    elif rows == 3:
        _mix_3(weights, values, ahead, out, width, first, end, kind)
    elif rows == 2:
        _mix_2(weights, values, ahead, out, width, first, end, kind)
    else:
        _mix_1(weights, values, ahead, out, width, first, end, kind)


@compiled()
def _mix(rows, weights, values, ahead, out, width, first, end, kind):
    """``out += weights @ values`` over positions ``[first, end)`` of a block, in order."""
    size = _size(kind)
    column = 0
    while column + BLOCK <= width:
        there = column * size
        _mix_columns(rows, weights, values + there, ahead + there, out + column * 4, width, first, end, kind)
        column += BLOCK
    while column < width:
        there = column * size
        for row in range(rows):
            here = out + (row * width + column) * 4
            _mix_narrow(
                weights + row * BLOCK * 4, values + there, ahead + there, here, width, first, end, kind
            )
        column += _LANES


@compiled()
def _mix_visible(rows, lows, highs, weights, values, ahead, out, width, kind):
    """`_mix` for rows that see different stretches of a block.

    What all of them see goes together; what comes before and after it, row by row. Every row's positions stay in order.
    """
    low, high = 0, BLOCK
    for r in range(rows):
        low, high = max(low, lows[r]), min(high, highs[r])
    if low >= high:
        low = high = BLOCK
    for stretch in range(3):
        r = 0
        while r < rows:
            together, first, end = 1, max(high, lows[r]), highs[r]
            if stretch == 0:
                first, end = lows[r], min(low, highs[r])
            elif stretch == 1:
                together, first, end = rows, low, high
            if first < end:
                at, here = weights + r * BLOCK * 4, out + r * width * 4
                _mix(together, at, values, ahead, here, width, first, end, kind)
            r += together


@compiled()
def _store(
    spans, tables, source, head_stride, row_stride, pages, page_stride, kv_heads, dim, width, transposed, kind
):
    """Write keys (`transposed`: pages are ``[kv_heads, width, BLOCK]``) or values (``[kv_heads, BLOCK, width]``)."""
    for span in range(spans.shape[0]):
        row, count, position, table = spans[span, 0], spans[span, 1], spans[span, 2], spans[span, 3]
        end = row + count
        while row < end:
            offset = position % BLOCK
            step = min(BLOCK - offset, end - row)
            page = tables[table + position // BLOCK] * page_stride
            for head in range(kv_heads):
                there = page + head * width * BLOCK
                here = head * head_stride + row * row_stride
                for i in range(step):
                    for d in range(dim):
                        place = d * BLOCK + offset + i if transposed else (offset + i) * width + d
                        _put(pages, there + place, _get(source, here + i * row_stride + d, kind))
            row += step
            position += step


@compiled()
def store(
    spans,
    tables,
    keys,
    key_head_stride,
    key_row_stride,
    values,
    value_head_stride,
    value_row_stride,
    key_pages,
    value_pages,
    page_stride,
    kv_heads,
    key_dim,
    key_width,
    value_dim,
    value_width,
    kind,
):
    """Write the keys and values of one pass to their pages.

    Args:
        spans, tables: of the pass's `PagePlan`.
        keys, values: ``[kv_heads, rows, dim]``, entries of a row side by side; with their strides in entries.
        key_pages, value_pages, page_stride: the layer's part of page 0, and entries from page to page.
        kv_heads, key_dim, key_width, value_dim, value_width: heads; the model's own widths and the stored ones.
        kind: of keys, values and pages.
    """
    _store(
        spans,
        tables,
        keys,
        key_head_stride,
        key_row_stride,
        key_pages,
        page_stride,
        kv_heads,
        key_dim,
        key_width,
        True,
        kind,
    )
    _store(
        spans,
        tables,
        values,
        value_head_stride,
        value_row_stride,
        value_pages,
        page_stride,
        kv_heads,
        value_dim,
        value_width,
        False,
        kind,
    )


@compiled()
def _extent(spans, tasks, task):
    """(span, row in the pass of the first query, position of the first and of the last query) of a task."""
    span, first, end = tasks[task, 0], tasks[task, 1], tasks[task, 2]
    return span, spans[span, 0] + first, spans[span, 2] + first, spans[span, 2] + end - 1


@compiled()
def _first_block(query, window):
    """Block of the first position that the query at a position sees."""
    return max(0, query - window + 1) // BLOCK if window > 0 else 0


@compiled()
def _first_page(spans, tables, tasks, task, window):
    """The first page that a task reads."""
    span, _, first_query, _ = _extent(spans, tasks, task)
    return tables[spans[span, 3] + _first_block(first_query, window)]


@compiled()
def attend_task(
    row,
    first_query,
    last_query,
    head,
    pages,
    query,
    head_stride,
    row_stride,
    out,
    key_pages,
    value_pages,
    page_stride,
    keys_behind,
    values_behind,
    kv_heads,
    group,
    key_dim,
    key_width,
    value_dim,
    value_width,
    scaling,
    window,
    softcap,
    sinks,
    queries,
    mixed,
    states,
    scores,
    query_kind,
    kind,
):
    """Attend for consecutive query rows of one sequence, with the query heads of one key head.

    Args:
        row, first_query, last_query: row in the pass of the first query, and positions of the first and of the last.
        head: the key head.
        pages: the sequence's page numbers, in order from position 0.
        keys_behind, values_behind: addresses of what is worked on next, to be fetched during the last block.
        queries, mixed, states, scores: memory to work in, float32 ``[rows * group, key_dim]``, ``[rows * group,
            value_width]``, ``[rows * group, 3]``, ``[TOGETHER, BLOCK]``.

    The others are those of `attend`.
    """
    size = _size(kind)
    lows, highs = np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64)
    score_at = _address(scores)
    rows = (last_query - first_query + 1) * group
    for r in range(rows):
        own_head = head * group + r % group
        start = own_head * head_stride + (row + r // group) * row_stride
        for d in range(key_dim):
            queries[r, d] = _widen(_get(query, start + d, query_kind)) * np.float32(scaling)
        for d in range(value_width):
            mixed[r, d] = np.float32(0.0)
        # A sink is a key of weight 1 at its own maximum, without a value.
        states[r, 0] = _get(sinks, own_head, np.float32(0.0)) if sinks != 0 else np.float32(-np.inf)
        states[r, 1] = np.float32(1.0) if sinks != 0 else np.float32(0.0)
    last_block = last_query // BLOCK
    for block in range(_first_block(first_query, window), last_block + 1):
        base = block * BLOCK
        page = pages[block] * page_stride
        keys = key_pages + (page + head * key_width * BLOCK) * size
        values = value_pages + (page + head * value_width * BLOCK) * size
        keys_ahead, values_ahead = keys_behind, values_behind
        if block < last_block:
            following = pages[block + 1] * page_stride
            keys_ahead = key_pages + (following + head * key_width * BLOCK) * size
            values_ahead = value_pages + (following + head * value_width * BLOCK) * size
        # Rows are in order of position: those that see something of the block are neighbours.
        last = min(last_query, base + BLOCK - 2 + window) if window > 0 else last_query
        r, end = max(0, base - first_query) * group, (last - first_query + 1) * group
        while r < end:
            some = min(TOGETHER, end - r)
            _score(
                some,
                _address(queries) + r * key_dim * 4,
                key_dim,
                keys,
                keys_ahead,
                score_at,
                key_dim,
                kind,
            )
            for i in range(some):
                position = first_query + (r + i) // group
                lows[i] = max(0, position - window + 1 - base) if window > 0 else 0
                highs[i] = min(BLOCK, position + 1 - base)
                if softcap > 0.0:
                    _cap(score_at + i * BLOCK * 4, np.float32(softcap))
                _weigh(score_at + i * BLOCK * 4, lows[i], highs[i], _address(states) + (r + i) * 12)
                shrink = states[r + i, 2]
                if shrink != np.float32(1.0):
                    for d in range(value_width):
                        mixed[r + i, d] *= shrink
            out_at = _address(mixed) + r * value_width * 4
            _mix_visible(some, lows, highs, score_at, values, values_ahead, out_at, value_width, kind)
            r += some
    for r in range(rows):
        start = ((row + r // group) * kv_heads * group + head * group + r % group) * value_dim
        for d in range(value_dim):
            _put(out, start + d, _narrow(mixed[r, d] / states[r, 1], query_kind))


@compiled()
def attend(
    counter,
    tasks,
    spans,
    tables,
    query,
    head_stride,
    row_stride,
    out,
    key_pages,
    value_pages,
    page_stride,
    kv_heads,
    group,
    key_dim,
    key_width,
    value_dim,
    value_width,
    scaling,
    window,
    softcap,
    sinks,
    query_kind,
    kind,
):
    """Work through tasks until none is left; several threads may do so at once, with the same arguments.

    Args:
        counter: int64 ``[1]``, the next task to take.
        tasks: int64 ``[n, 3]``: span, first and end of its query rows. Each is as many tasks as there are key heads.
        spans, tables: of the pass's `PagePlan`.
        query, head_stride, row_stride: ``[heads, rows, key_dim]``, entries of a row side by side.
        out: ``[rows, heads, value_dim]``, contiguous, of the query's kind.
        key_pages, value_pages, page_stride: the layer's part of page 0, and entries from page to page.
        kv_heads, group: key heads, and query heads for each.
        key_dim, key_width, value_dim, value_width: the model's own widths and the stored ones.
        scaling, window, softcap: the rule; 0 for no window and no soft cap.
        sinks: float32 ``[heads]``, or 0 for none.
        query_kind, kind: of queries and output, of the pages.
    """
    size = _size(kind)
    most = 0
    for task in range(tasks.shape[0]):
        most = max(most, (tasks[task, 2] - tasks[task, 1]) * group)
    queries = np.empty((most, key_dim), np.float32)
    mixed = np.empty((most, value_width), np.float32)
    states = np.empty((most, 3), np.float32)
    scores = np.empty((TOGETHER, BLOCK), np.float32)
    count = tasks.shape[0] * kv_heads
    upcoming = _take(_address(counter))
    while upcoming < count:
        # One task is held in advance, so that its first block can be fetched while the last of this one is worked on.
        task, head, upcoming = upcoming // kv_heads, upcoming % kv_heads, _take(_address(counter))
        span, row, first_query, last_query = _extent(spans, tasks, task)
        following, its_head = tables[spans[span, 3]], head
        if upcoming < count:
            following = _first_page(spans, tables, tasks, upcoming // kv_heads, window)
            its_head = upcoming % kv_heads
        following *= page_stride
        attend_task(
            row,
            first_query,
            last_query,
            head,
            tables[spans[span, 3] :],
            query,
            head_stride,
            row_stride,
            out,
            key_pages,
            value_pages,
            page_stride,
            key_pages + (following + its_head * key_width * BLOCK) * size,
            value_pages + (following + its_head * value_width * BLOCK) * size,
            kv_heads,
            group,
            key_dim,
            key_width,
            value_dim,
            value_width,
            scaling,
            window,
            softcap,
            sinks,
            queries,
            mixed,
            states,
            scores,
            query_kind,
            kind,
        )
