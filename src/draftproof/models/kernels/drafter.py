"""A DFlash drafter's two passes, each as one compiled function that all threads run at once.

`_propose` takes the slots of all blocks through the drafter's layers and the LM head; `_extend` turns context features
into keys and values of all layers, in their pages. Both are rows of phases (see `phases`), over rows that never look at one
another, but for a block's own in attention.

Everything is found by number: `model` is int64, the drafter's own addresses and sizes; `call` is int64, those of one pass.
The names below say what lies where.
"""

# The types of compiled functions are numba's business.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-not-found,import-untyped,unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from draftproof.models.kernels.compiling import compiled
from draftproof.models.kernels.gemm import prepare, product, tile_bytes
from draftproof.models.kernels.launching import on_team
from draftproof.models.kernels.packing import PANEL, TILE
from draftproof.models.kernels.paged import (
    BLOCK,
    TOGETHER,
    _address,
    _Code,
    _get,
    _mix_visible,
    _put,
    _weigh,
)
from draftproof.models.kernels.paged import _widen as _wide
from draftproof.models.kernels.phases import add_release, done_of, hold, take, taken_of, wait
from draftproof.models.kernels.rows import add, cap, copy_narrow, gate_gelu, gate_silu, norm, turn
from draftproof.models.kernels.weight_fields import (
    BIAS,
    DATA,
    DOWN,
    GATE_UP,
    OUTPUT,
    PADDED_IN,
    QKV,
    SCALES,
    TILES,
    WEIGHT_FIELDS,
)

# A layer's line: four weights, then these.
INPUT_NORM, POST_NORM, QUERY_NORM, KEY_NORM, SINKS, WINDOW, CAUSAL = range(
    4 * WEIGHT_FIELDS, 4 * WEIGHT_FIELDS + 7
)
LAYER_FIELDS = 4 * WEIGHT_FIELDS + 7

# The drafter's numbers.
(
    MEASURES,
    LAYERS,
    LAYER_TABLE,
    HIDDEN,
    STRIDE,
    INNER,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    VOCAB,
    ACTIVATION,
    EMBEDDING,
    EMBEDDING_IS_HALF,
    PAGES_ARE_HALF,
    FINAL_NORM,
    FEATURE_WIDTH,
    HIDDEN_NORM,
    CONTEXT_KEY_NORMS,
) = range(18)
FC, CONTEXT, HEAD = (18 + WEIGHT_FIELDS * i for i in range(3))
MODEL_FIELDS = 18 + 3 * WEIGHT_FIELDS
# Its measures, float64.
EPSILON, SCALING, EMBEDDING_SCALE, VALUE_SCALE, MULTIPLIER, SOFTCAP = range(6)
MEASURE_FIELDS = 6

# A pass: addresses, then counts.
(
    MODEL,
    COUNTERS,
    SPANS,
    TABLES,
    TOKENS,
    ROPE,
    STATE,
    NORMED,
    PROJECTED,
    MIXED,
    GATED,
    VALUES,
    VALUE_SCALES,
    VALUE_SUMS,
    HIDDEN_OUT,
    FINITE,
    LOGIT_ROWS,
    LOGITS,
    PARTIALS,
    CHOSEN,
    LIKELY,
    NUM_SPANS,
    NUM_ROWS,
    NUM_ASKED,
    MOST_SLOTS,
    THREADS,
) = range(26)
CALL_FIELDS = 26

# A sequence of a pass. SOURCE, SOURCE_STRIDE (bytes) and SOURCE_IS_HALF are the features' of an extension.
FIRST_ROW, COUNT, START, TABLE, PAGES, LAYER_BYTES, SOURCE, SOURCE_STRIDE, SOURCE_IS_HALF = range(9)
SPAN_FIELDS = 9

# What a thread knows of an asked row: greatest logit, its token, sum of exponentials; float64.
BEST, TOKEN, TOTAL = range(3)
PARTIAL_FIELDS = 3

LAYER_PHASES, END_PHASES, EXTEND_PHASES = 9, 3, 5
ADDING, STORING, GATING = range(3)

_TASK_BYTES = 32768
"""Weights that one product task reads: neighbouring tiles, so that memory is read in long stretches."""
_LEAST_TASKS = 8
_ROWS_AT_ONCE = 96
_FEW_ROWS = 32
_ZERO, _HALF_ZERO, _WORD_ZERO = np.float32(0), np.uint16(0), np.uint32(0)
_EXPONENT = np.uint32(0x7F800000)
_CACHE_LINE = 64
_LANES = PANEL
_INT, _LONG = ir.IntType(32), ir.IntType(64)


def phases_of(layers: int) -> int:
    """Lines of counters that a proposal needs: its phases, and one that numbers the threads."""
    return layers * LAYER_PHASES + END_PHASES + 1


# --- numbers in memory --------------------------------------------------------------------------------------------


@intrinsic
def _at(context, address, index, kind):
    """Entry `index` of memory that holds numbers like `kind`."""

    def generate(context, builder, signature, arguments):
        there = builder.add(arguments[0], builder.mul(arguments[1], _LONG(kind.bitwidth // 8)))
        element = context.get_value_type(kind)
        return builder.load(builder.inttoptr(there, element.as_pointer()))

    return kind(types.intp, types.intp, kind), generate


@intrinsic
def _set(context, address, index, value):
    """Set entry `index` of memory that holds numbers like `value`."""

    def generate(context, builder, signature, arguments):
        there = builder.add(arguments[0], builder.mul(arguments[1], _LONG(value.bitwidth // 8)))
        builder.store(arguments[2], builder.inttoptr(there, arguments[2].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, value), generate


@intrinsic
def _whole(context, address, index):
    """Entry `index` of int64 numbers."""

    def generate(context, builder, signature, arguments):
        there = builder.add(arguments[0], builder.shl(arguments[1], _LONG(3)))
        return builder.load(builder.inttoptr(there, _LONG.as_pointer()))

    return types.int64(types.intp, types.intp), generate


@intrinsic
def _real(context, address, index):
    """Entry `index` of float64 numbers."""

    def generate(context, builder, signature, arguments):
        there = builder.add(arguments[0], builder.shl(arguments[1], _LONG(3)))
        return builder.load(builder.inttoptr(there, ir.DoubleType().as_pointer()))

    return types.float64(types.intp, types.intp), generate


# --- vectors ------------------------------------------------------------------------------------------------------


@intrinsic
def _widen_vectors(context, source, out, vectors, factor, kind):
    """``out = source * factor`` over ``16 * vectors`` entries, float32 out of a kind."""

    def generate(context, builder, signature, arguments):
        code, half = _Code(builder), signature.args[4] != types.float32
        source, out, vectors, factor, _ = arguments
        everywhere = code.splat(factor)
        with cgutils.for_range(builder, vectors) as loop:
            at = builder.mul(loop.index, _LONG(_LANES))
            code.store(builder.fmul(code.load(source, at, half), everywhere), out, at)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.float32, kind), generate


def _page_widener(vectors: int) -> Any:
    """Makes the function that widens a page's keys and values of one head, ``16 * vectors`` entries each."""

    @intrinsic
    def widen(context, source, step, apart, keys, values, count, ahead, kind):
        """``keys[p], values[p] =`` those of `count` positions, as float32 side by side.

        Position p's key is at ``source + p * step``, its value `apart` bytes further. Meanwhile those at `ahead` are fetched.
        """

        def generate(context, builder, signature, arguments):
            code, half = _Code(builder), signature.args[7] != types.float32
            source, step, apart, keys, values, count, ahead, _ = arguments
            size = 2 if half else 4
            with cgutils.for_range(builder, count) as loop:
                offset = builder.mul(loop.index, step)
                to = builder.mul(loop.index, _LONG(vectors * _LANES))
                for out, more in ((keys, _LONG(0)), (values, apart)):
                    here = builder.add(builder.add(source, offset), more)
                    there = builder.add(builder.add(ahead, offset), more)
                    for byte in range(0, vectors * _LANES * size, _CACHE_LINE):
                        code.prefetch(builder.add(there, _LONG(byte)))
                    for part in range(vectors):
                        at = _LONG(part * _LANES)
                        code.store(code.load(here, at, half), out, builder.add(to, at))
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7, kind), generate

    return widen


_widen_page_4, _widen_page_8 = _page_widener(4), _page_widener(8)


@intrinsic
def _dots(context, query, keys, width, out):
    """Scores of one query with 16 keys that lie `width` apart; `width` is a multiple of 16."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        query, keys, width, out = arguments
        sums = [cgutils.alloca_once_value(builder, code.floats(0.0)) for _ in range(_LANES)]
        starts = [builder.mul(width, _LONG(key)) for key in range(_LANES)]
        with cgutils.for_range(builder, builder.udiv(width, _LONG(_LANES))) as loop:
            at = builder.mul(loop.index, _LONG(_LANES))
            part = code.load(query, at)
            for start, total in zip(starts, sums, strict=True):
                key = code.load(keys, builder.add(start, at))
                builder.store(code.fma(part, key, builder.load(total)), total)
        vectors = [builder.load(total) for total in sums]
        even, odd = (
            ir.Constant(ir.VectorType(_INT, _LANES), [2 * lane + rest for lane in range(_LANES)])
            for rest in range(2)
        )
        while len(vectors) > 1:  # neighbouring lanes are added; what was key i's ends in lane i
            vectors = [
                builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        code.store(vectors[0], out, _LONG(0))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


@intrinsic
def _tile_best(context, row):
    """The greatest of 32 numbers."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        low, high = (code.load(arguments[0], _LONG(half * _LANES)) for half in range(2))
        return code.across(code.larger(low, high), code.larger)

    return types.float32(types.intp), generate


@intrinsic
def _tile_exponentials(context, row, best):
    """Sum of ``exp(number - best)`` over 32 numbers, none greater than `best`."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        best = code.splat(arguments[1])
        low, high = (
            code.exp(builder.fsub(code.load(arguments[0], _LONG(half * _LANES)), best)) for half in range(2)
        )
        return code.across(builder.fadd(low, high), builder.fadd)

    return types.float32(types.intp, types.float32), generate


@intrinsic
def _scale_tile(context, row, factor):
    """32 numbers times a factor, in place."""

    def generate(context, builder, signature, arguments):
        code = _Code(builder)
        for half in range(2):
            at = _LONG(half * _LANES)
            scaled = builder.fmul(code.load(arguments[0], at), code.splat(arguments[1]))
            code.store(scaled, arguments[0], at)
        return context.get_dummy_value()

    return types.void(types.intp, types.float32), generate


@compiled()
def _widen(source, out, count, width, factor, half):
    """`count` stored entries as float32, times a factor, then zeros up to `width`."""
    vectors = count // _LANES
    if half != 0:
        _widen_vectors(source, out, vectors, factor, _HALF_ZERO)
        for i in range(vectors * _LANES, count):
            _put(out, i, _wide(_get(source, i, _HALF_ZERO)) * factor)
    else:
        _widen_vectors(source, out, vectors, factor, _ZERO)
        for i in range(vectors * _LANES, count):
            _put(out, i, _get(source, i, _ZERO) * factor)
    for i in range(count, width):
        _put(out, i, _ZERO)


@compiled()
def _is_finite(row, count):
    """Whether all entries are: whether none has the exponent that infinity and NaN have."""
    found = 0
    for i in range(count):
        found |= (_at(row, i, _WORD_ZERO) & _EXPONENT) == _EXPONENT
    return found == 0


# --- phases -------------------------------------------------------------------------------------------------------


@compiled()
def _rows_of_task(rows):
    return 1 if rows <= _FEW_ROWS else 4


@compiled()
def _tiles_of_task(tiles, padded_in, kind):
    """Neighbouring tiles that one task multiplies."""
    most = max(1, tiles // _LEAST_TASKS)
    return max(1, min(most, _TASK_BYTES // tile_bytes(padded_in, kind)))


@compiled()
def _linear(call, phase, fields, at, rows, out, stride, use, activation, buffer, kind):
    """A product of all prepared rows with the weight at ``fields[at : at + WEIGHT_FIELDS]``.

    Args:
        out, stride: float32 ``[rows, stride]`` that receives it, with room for whole tiles (for half of them when gating).
        use: `ADDING`, `STORING` or `GATING`.
        buffer: float32 ``[_ROWS_AT_ONCE, TILE]`` of this thread's own.
    """
    values, scales, sums = _whole(call, VALUES), _whole(call, VALUE_SCALES), _whole(call, VALUE_SUMS)
    data, weight_scales = _whole(fields, at + DATA), _whole(fields, at + SCALES)
    bias, padded_in, tiles = (
        _whole(fields, at + BIAS),
        _whole(fields, at + PADDED_IN),
        _whole(fields, at + TILES),
    )
    counters = _whole(call, COUNTERS)
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    step = _tiles_of_task(tiles, padded_in, kind)
    across = (tiles + step - 1) // step
    tasks = across * ((rows + _ROWS_AT_ONCE - 1) // _ROWS_AT_ONCE)
    while True:
        task = take(taken)
        if task >= tasks:
            break
        first = task // across * _ROWS_AT_ONCE
        count = min(_ROWS_AT_ONCE, rows - first)
        for tile in range(task % across * step, min(tiles, (task % across + 1) * step)):
            there, apart = buffer, TILE
            if use == STORING:
                there, apart = out + (first * stride + tile * TILE) * 4, stride
            product(
                data, weight_scales, padded_in, tile, values, scales, sums, first, count, there, apart, kind
            )
            if bias != 0:
                for r in range(count):
                    add(there + r * apart * 4, bias + tile * TILE * 4, TILE // PANEL)
            if use == GATING:
                to = out + (first * stride + tile * PANEL) * 4
                for r in range(count):
                    gates = buffer + r * TILE * 4
                    if activation == 0:
                        gate_silu(gates, gates + PANEL * 4, to + r * stride * 4)
                    else:
                        gate_gelu(gates, gates + PANEL * 4, to + r * stride * 4)
            elif use == ADDING:
                to = out + (first * stride + tile * TILE) * 4
                for r in range(count):
                    add(to + r * stride * 4, buffer + r * TILE * 4, TILE // PANEL)
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _norm_all(call, phase, model, layer, weight, padded_in, kind):
    """Norm and prepare all rows; first look up their embeddings where `layer` is 0."""
    counters = _whole(call, COUNTERS)
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    rows = _whole(call, NUM_ROWS)
    step = _rows_of_task(rows)
    tasks = (rows + step - 1) // step
    hidden, stride = _whole(model, HIDDEN), _whole(model, STRIDE)
    measures, tokens = _whole(model, MEASURES), _whole(call, TOKENS)
    half = _whole(model, EMBEDDING_IS_HALF)
    while True:
        task = take(taken)
        if task >= tasks:
            break
        for r in range(task * step, min(rows, (task + 1) * step)):
            state = _whole(call, STATE) + r * stride * 4
            if layer == 0:
                size = 2 if half != 0 else 4
                source = _whole(model, EMBEDDING) + _whole(tokens, r) * hidden * size
                _widen(source, state, hidden, stride, np.float32(_real(measures, EMBEDDING_SCALE)), half)
            normed = _whole(call, NORMED) + r * stride * 4
            norm(state, weight, normed, hidden, _real(measures, EPSILON))
            _prepare_row(call, normed, hidden, padded_in, r, kind)
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _prepare_row(call, row, width, padded_in, to, kind):
    prepare(
        row, width, padded_in, _whole(call, VALUES), _whole(call, VALUE_SCALES), _whole(call, VALUE_SUMS), to, kind
    )  # fmt: skip


@compiled()
def _prepare_all(call, phase, source, stride, width, padded_in, kind):
    counters = _whole(call, COUNTERS)
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    rows = _whole(call, NUM_ROWS)
    step = _rows_of_task(rows)
    tasks = (rows + step - 1) // step
    while True:
        task = take(taken)
        if task >= tasks:
            break
        for r in range(task * step, min(rows, (task + 1) * step)):
            _prepare_row(call, source + r * stride * 4, width, padded_in, r, kind)
        add_release(done, 1)
    wait(done, tasks)


# --- attention ----------------------------------------------------------------------------------------------------


@compiled()
def _widen_page(source, step, apart, keys, values, count, dim, width, ahead, kind):
    """The keys and values of `count` positions, brought up to `width` by zeros; see `_page_widener`."""
    if dim == 4 * _LANES:
        _widen_page_4(source, step, apart, keys, values, count, ahead, kind)
    elif dim == 8 * _LANES:
        _widen_page_8(source, step, apart, keys, values, count, ahead, kind)
    else:
        vectors = dim // _LANES
        for p in range(count):
            for more, out in ((0, keys + p * width * 4), (apart, values + p * width * 4)):
                here = source + p * step + more
                _widen_vectors(here, out, vectors, np.float32(1), kind)
                for i in range(vectors * _LANES, dim):
                    _put(out, i, _wide(_get(here, i, kind)))
                for i in range(dim, width):
                    _put(out, i, _ZERO)


@compiled()
def _attend_block(
    rows, group, low_of, high_of, count, width, queries, keys, values, scores, mixed, states, limits
):
    """All query rows of a task over `count` positions that lie widened at `keys` and `values`.

    Row r is slot ``r // group``. It sees positions from ``slot + low_of`` on, to before ``slot + high_of``.
    """
    lows, highs = limits[0], limits[1]
    first = 0
    while first < rows:
        some = min(TOGETHER, rows - first)
        for i in range(some):
            row = first + i
            slot = row // group
            lows[i] = min(count, max(0, slot + low_of))
            highs[i] = max(lows[i], min(count, slot + high_of))
            line = scores + i * BLOCK * 4
            query = queries + row * width * 4
            for part in range((count + _LANES - 1) // _LANES):
                _dots(query, keys + part * _LANES * width * 4, width, line + part * _LANES * 4)
            state = states + row * 12
            _weigh(line, lows[i], highs[i], state)
            shrink = _get(state, 2, _ZERO)
            if shrink != np.float32(1.0):
                out = mixed + row * width * 4
                _widen_vectors(out, out, width // _LANES, shrink, _ZERO)
        _mix_visible(some, lows, highs, scores, values, values, mixed + first * width * 4, width, _ZERO)
        first += some


@compiled()
def _attend(call, phase, model, layer, line, queries, keys, values, scores, mixed, states, limits):
    """A task is a sequence and a key head: its slots' queries over the sequence's context and over the slots themselves."""
    counters = _whole(call, COUNTERS)
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    heads, kv_heads, dim = _whole(model, HEADS), _whole(model, KV_HEADS), _whole(model, HEAD_DIM)
    group, width = heads // kv_heads, (dim + _LANES - 1) // _LANES * _LANES
    measures, half = _whole(model, MEASURES), _whole(model, PAGES_ARE_HALF)
    size = 2 if half != 0 else 4
    epsilon, scaling = _real(measures, EPSILON), np.float32(_real(measures, SCALING))
    value_scale = np.float32(_real(measures, VALUE_SCALE))
    stride = _whole(line, QKV + TILES) * TILE
    window, causal, sinks = _whole(line, WINDOW), _whole(line, CAUSAL), _whole(line, SINKS)
    position_bytes = 2 * kv_heads * dim * size
    far = np.int64(1) << 40
    tasks = _whole(call, NUM_SPANS) * kv_heads
    while True:
        task = take(taken)
        if task >= tasks:
            break
        span, head = _whole(call, SPANS) + task // kv_heads * SPAN_FIELDS * 8, task % kv_heads
        row, slots, length = _whole(span, FIRST_ROW), _whole(span, COUNT), _whole(span, START)
        table = _whole(call, TABLES) + _whole(span, TABLE) * 8
        pages = _whole(span, PAGES) + layer * _whole(span, LAYER_BYTES) + head * dim * size
        projected = _whole(call, PROJECTED) + row * stride * 4
        rows = slots * group
        for slot in range(slots):
            angles = _whole(call, ROPE) + (length + slot) * dim * 4
            for j in range(group):
                r, own = slot * group + j, head * group + j
                query = queries + r * width * 4
                _widen(projected + (slot * stride + own * dim) * 4, query, dim, width, np.float32(1), 0)
                norm(query, _whole(line, QUERY_NORM), query, dim, epsilon)
                turn(query, dim // 2, angles)
                for d in range(dim):
                    _put(query, d, _get(query, d, _ZERO) * scaling)
                for d in range(width):
                    _put(mixed, r * width + d, _ZERO)
                # A sink is a key of weight 1 at its own maximum, without a value.
                _put(states, r * 3, _get(sinks, own, _ZERO) if sinks != 0 else np.float32(-np.inf))
                _put(states, r * 3 + 1, np.float32(1) if sinks != 0 else _ZERO)
        # The context, a page at a time.
        first = max(0, length - window + 1) // BLOCK if window > 0 else 0
        for block in range(first, (length + BLOCK - 1) // BLOCK):
            base = block * BLOCK
            count = min(BLOCK, length - base)
            here = pages + _whole(table, block) * BLOCK * position_bytes
            ahead = here
            if base + BLOCK < length:
                ahead = pages + _whole(table, block + 1) * BLOCK * position_bytes
            apart = kv_heads * dim * size
            if half != 0:
                _widen_page(here, position_bytes, apart, keys, values, count, dim, width, ahead, _HALF_ZERO)
            else:
                _widen_page(here, position_bytes, apart, keys, values, count, dim, width, ahead, _ZERO)
            low = length - window + 1 - base if window > 0 else -far
            _attend_block(
                rows, group, low, far, count, width, queries, keys, values, scores, mixed, states, limits
            )
        # The block's own slots.
        for base in range(0, slots, BLOCK):
            count = min(BLOCK, slots - base)
            for p in range(count):
                here = projected + ((base + p) * stride + (heads + head) * dim) * 4
                key = keys + p * width * 4
                _widen(here, key, dim, width, np.float32(1), 0)
                norm(key, _whole(line, KEY_NORM), key, dim, epsilon)
                turn(key, dim // 2, _whole(call, ROPE) + (length + base + p) * dim * 4)
                _widen(here + kv_heads * dim * 4, values + p * width * 4, dim, width, value_scale, 0)
            low = 1 - window - base if window > 0 else -far
            high = 1 - base if causal != 0 else (window - base if window > 0 else far)
            _attend_block(
                rows, group, low, high, count, width, queries, keys, values, scores, mixed, states, limits
            )
        for r in range(rows):
            out = _whole(call, MIXED) + ((row + r // group) * heads + head * group + r % group) * dim * 4
            total = np.float32(1) / _get(states, r * 3 + 1, _ZERO)
            for d in range(dim):
                _put(out, d, _get(mixed, r * width + d, _ZERO) * total)
        add_release(done, 1)
    wait(done, tasks)


# --- the head -----------------------------------------------------------------------------------------------------


@compiled()
def _finish(call, phase, model, head_kind):
    """The final norm; rows that are asked for are prepared for the head, as zeros where they are not finite."""
    counters = _whole(call, COUNTERS)
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    rows, hidden, stride = _whole(call, NUM_ROWS), _whole(model, HIDDEN), _whole(model, STRIDE)
    step = _rows_of_task(rows)
    tasks = (rows + step - 1) // step
    epsilon = _real(_whole(model, MEASURES), EPSILON)
    asked = _whole(call, LOGIT_ROWS)
    while True:
        task = take(taken)
        if task >= tasks:
            break
        for r in range(task * step, min(rows, (task + 1) * step)):
            state, out = _whole(call, STATE) + r * stride * 4, _whole(call, HIDDEN_OUT) + r * hidden * 4
            if _whole(call, HIDDEN_OUT) == 0:
                out = _whole(call, NORMED) + r * stride * 4
            norm(state, _whole(model, FINAL_NORM), out, hidden, epsilon)
            to = _whole(asked, r) if asked != 0 else -1
            if to >= 0:
                finite = _is_finite(out, hidden)
                _set(_whole(call, FINITE), to, np.uint8(finite))
                if not finite:
                    for i in range(hidden):
                        _put(out, i, _ZERO)
                _prepare_row(call, out, hidden, _whole(model, HEAD + PADDED_IN), to, head_kind)
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _absorb(row, tile, known):
    """Take 32 logits into what is known of a row."""
    best = _tile_best(row)
    before = _real(known, BEST)
    if best > before:
        _set(known, TOTAL, _real(known, TOTAL) * math.exp(before - np.float64(best)))
        _set(known, BEST, np.float64(best))
        place = 0
        while _get(row, place, _ZERO) != best:
            place += 1
        _set(known, TOKEN, np.float64(tile * TILE + place))
    total = _tile_exponentials(row, np.float32(_real(known, BEST)))
    _set(known, TOTAL, _real(known, TOTAL) + np.float64(total))


@compiled()
def _head(call, phase, model, slot, buffer, kind):
    """Logits of the asked rows: those that have a place in `LOGITS` are kept there, of the others only the best and the sum."""
    counters = _whole(call, COUNTERS)
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    rows, vocab = _whole(call, NUM_ASKED), _whole(model, VOCAB)
    values, scales, sums = _whole(call, VALUES), _whole(call, VALUE_SCALES), _whole(call, VALUE_SUMS)
    data, weight_scales, bias = (
        _whole(model, HEAD + DATA),
        _whole(model, HEAD + SCALES),
        _whole(model, HEAD + BIAS),
    )
    padded_in, tiles = _whole(model, HEAD + PADDED_IN), _whole(model, HEAD + TILES)
    measures = _whole(model, MEASURES)
    multiplier, softcap = np.float32(_real(measures, MULTIPLIER)), _real(measures, SOFTCAP)
    kept = _whole(call, CHOSEN)  # until a token has been chosen: the row's place in `LOGITS`, or -1
    mine = _whole(call, PARTIALS) + slot * (rows + 1) * PARTIAL_FIELDS * 8
    step = _tiles_of_task(tiles, padded_in, kind)
    tasks = (tiles + step - 1) // step
    begun = False
    while True:
        task = take(taken)
        if task >= tasks:
            break
        if not begun:
            begun = True
            _set(mine, rows * PARTIAL_FIELDS, 1.0)
            for r in range(rows):
                _set(mine, r * PARTIAL_FIELDS + BEST, -np.inf)
                _set(mine, r * PARTIAL_FIELDS + TOKEN, 0.0)
                _set(mine, r * PARTIAL_FIELDS + TOTAL, 0.0)
        for tile in range(task * step, min(tiles, (task + 1) * step)):
            width = min(TILE, vocab - tile * TILE)
            for first in range(0, rows, _ROWS_AT_ONCE):
                count = min(_ROWS_AT_ONCE, rows - first)
                product(
                    data, weight_scales, padded_in, tile, values, scales, sums, first, count, buffer, TILE, kind
                )  # fmt: skip
                for i in range(count):
                    row, r = buffer + i * TILE * 4, first + i
                    if bias != 0:
                        add(row, bias + tile * TILE * 4, TILE // PANEL)
                    if multiplier != np.float32(1):
                        _scale_tile(row, multiplier)
                    if softcap > 0.0:
                        cap(row, TILE // PANEL, np.float32(softcap))
                    place = _whole(kept, r)
                    if place >= 0:
                        there = _whole(call, LOGITS) + (place * vocab + tile * TILE) * 4
                        for c in range(width):
                            _put(there, c, _get(row, c, _ZERO))
                    else:
                        for c in range(width, TILE):
                            _put(row, c, np.float32(-np.inf))
                        _absorb(row, tile, mine + r * PARTIAL_FIELDS * 8)
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _choose(call, phase):
    """Join what the threads know: the first of the greatest logits of each row, and its probability."""
    counters = _whole(call, COUNTERS)
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    rows, partials = _whole(call, NUM_ASKED), _whole(call, PARTIALS)
    size = (rows + 1) * PARTIAL_FIELDS
    if take(taken) == 0:
        for r in range(rows):
            if _whole(_whole(call, CHOSEN), r) >= 0:
                continue
            best, token, total = -np.inf, 0.0, 0.0
            for slot in range(_whole(call, THREADS)):
                at = slot * size + r * PARTIAL_FIELDS
                if _real(partials, slot * size + rows * PARTIAL_FIELDS) == 0.0:
                    continue
                other, its_token = _real(partials, at + BEST), _real(partials, at + TOKEN)
                highest = max(best, other)
                if highest > -np.inf:
                    total = total * math.exp(best - highest)
                    total += _real(partials, at + TOTAL) * math.exp(other - highest)
                if other > best or (other == best and its_token < token):
                    token = its_token
                best = highest
            _set(_whole(call, CHOSEN), r, np.int64(token))
            _put(_whole(call, LIKELY), r, np.float32(1.0 / total))
        add_release(done, 1)
    wait(done, 1)


# --- the passes ---------------------------------------------------------------------------------------------------


@compiled()
def _propose(call, kind, head_kind):
    """Hidden states of all blocks' slots, and from the head what is asked of them. Every thread calls this."""
    model = _whole(call, MODEL)
    heads, kv_heads, dim = _whole(model, HEADS), _whole(model, KV_HEADS), _whole(model, HEAD_DIM)
    layers, stride, rows = _whole(model, LAYERS), _whole(model, STRIDE), _whole(call, NUM_ROWS)
    width, most = (dim + _LANES - 1) // _LANES * _LANES, _whole(call, MOST_SLOTS) * (heads // kv_heads)
    queries, mixed = np.empty((most, width), np.float32), np.empty((most, width), np.float32)
    keys, values = np.zeros((BLOCK, width), np.float32), np.empty((BLOCK, width), np.float32)
    scores, states = np.empty((TOGETHER, BLOCK), np.float32), np.empty((most, 3), np.float32)
    limits = np.empty((2, TOGETHER), np.int64)
    buffer = np.empty((_ROWS_AT_ONCE, TILE), np.float32)
    activation, inner = _whole(model, ACTIVATION), _whole(model, INNER)
    state, mix, gated = _whole(call, STATE), _whole(call, MIXED), _whole(call, GATED)
    for layer in range(layers):
        line = _whole(model, LAYER_TABLE) + layer * LAYER_FIELDS * 8
        phase, at = layer * LAYER_PHASES, _address(buffer)
        _norm_all(call, phase, model, layer, _whole(line, INPUT_NORM), _whole(line, QKV + PADDED_IN), kind)
        projected = _whole(line, QKV + TILES) * TILE
        _linear(
            call, phase + 1, line, QKV, rows, _whole(call, PROJECTED), projected, STORING, activation, at, kind
        )  # fmt: skip
        _attend(
            call, phase + 2, model, layer, line, _address(queries), _address(keys), _address(values),
            _address(scores), _address(mixed), _address(states), limits,
        )  # fmt: skip
        _prepare_all(call, phase + 3, mix, heads * dim, heads * dim, _whole(line, OUTPUT + PADDED_IN), kind)
        _linear(call, phase + 4, line, OUTPUT, rows, state, stride, ADDING, activation, at, kind)
        _norm_all(call, phase + 5, model, 1, _whole(line, POST_NORM), _whole(line, GATE_UP + PADDED_IN), kind)
        padded = _whole(line, DOWN + PADDED_IN)
        _linear(call, phase + 6, line, GATE_UP, rows, gated, padded, GATING, activation, at, kind)
        _prepare_all(call, phase + 7, gated, padded, inner, padded, kind)
        _linear(call, phase + 8, line, DOWN, rows, state, stride, ADDING, activation, at, kind)
    phase = layers * LAYER_PHASES
    _finish(call, phase, model, head_kind)
    if _whole(call, NUM_ASKED) > 0:
        # Whoever comes gets a place of its own for what it learns of the logits.
        slot = take(taken_of(_whole(call, COUNTERS), phase + END_PHASES))
        if slot < _whole(call, THREADS):
            _head(call, phase + 1, model, slot, _address(buffer), head_kind)
            _choose(call, phase + 2)
    hold(buffer)


@compiled()
def _extend(call, kind, head_kind):
    """Keys and values of context features, into their pages. Every thread calls this."""
    model = _whole(call, MODEL)
    rows, stride = _whole(call, NUM_ROWS), _whole(model, STRIDE)
    width = _whole(model, FEATURE_WIDTH)
    feature = np.empty(width, np.float32)
    buffer = np.empty((_ROWS_AT_ONCE, TILE), np.float32)
    at, entries = _address(buffer), _whole(call, PROJECTED)
    _read(call, 0, model, _address(feature), kind)
    _linear(call, 1, model, FC, rows, _whole(call, STATE), stride, STORING, 0, at, kind)
    _norm_all(call, 2, model, 1, _whole(model, HIDDEN_NORM), _whole(model, CONTEXT + PADDED_IN), kind)
    _linear(
        call, 3, model, CONTEXT, rows, entries, _whole(model, CONTEXT + TILES) * TILE, STORING, 0, at, kind
    )  # fmt: skip
    _store(call, 4, model)
    hold(feature)
    hold(buffer)


@compiled()
def _span_of(call, row):
    """The span that a row belongs to."""
    span = _whole(call, SPANS)
    while row >= _whole(span, FIRST_ROW) + _whole(span, COUNT):
        span += SPAN_FIELDS * 8
    return span


@compiled()
def _read(call, phase, model, feature, kind):
    """Prepare the features."""
    counters = _whole(call, COUNTERS)
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    rows, width = _whole(call, NUM_ROWS), _whole(model, FEATURE_WIDTH)
    step = _rows_of_task(rows)
    tasks = (rows + step - 1) // step
    while True:
        task = take(taken)
        if task >= tasks:
            break
        for r in range(task * step, min(rows, (task + 1) * step)):
            span = _span_of(call, r)
            source = _whole(span, SOURCE) + (r - _whole(span, FIRST_ROW)) * _whole(span, SOURCE_STRIDE)
            _widen(source, feature, width, width, np.float32(1), _whole(span, SOURCE_IS_HALF))
            _prepare_row(call, feature, width, _whole(model, FC + PADDED_IN), r, kind)
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _store(call, phase, model):
    """Norm and turn the keys; write keys and values of every layer to their places."""
    counters = _whole(call, COUNTERS)
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    rows, layers = _whole(call, NUM_ROWS), _whole(model, LAYERS)
    kv_heads, dim = _whole(model, KV_HEADS), _whole(model, HEAD_DIM)
    half, measures = _whole(model, PAGES_ARE_HALF), _whole(model, MEASURES)
    size = 2 if half != 0 else 4
    value_scale = np.float32(_real(measures, VALUE_SCALE))
    stride = _whole(model, CONTEXT + TILES) * TILE
    step = _rows_of_task(rows)
    tasks = (rows + step - 1) // step
    part = kv_heads * dim
    while True:
        task = take(taken)
        if task >= tasks:
            break
        for r in range(task * step, min(rows, (task + 1) * step)):
            span = _span_of(call, r)
            position = _whole(span, START) + r - _whole(span, FIRST_ROW)
            page = _whole(_whole(call, TABLES), _whole(span, TABLE) + position // BLOCK)
            place = _whole(span, PAGES) + (page * BLOCK + position % BLOCK) * 2 * part * size
            angles = _whole(call, ROPE) + position * dim * 4
            for layer in range(layers):
                keys = _whole(call, PROJECTED) + (r * stride + layer * 2 * part) * 4
                for head in range(kv_heads):
                    key = keys + head * dim * 4
                    norm(
                        key, _whole(model, CONTEXT_KEY_NORMS) + layer * dim * 4, key, dim,
                        _real(measures, EPSILON),
                    )  # fmt: skip
                    turn(key, dim // 2, angles)
                if value_scale != np.float32(1):
                    for i in range(part, 2 * part):
                        _put(keys, i, _get(keys, i, _ZERO) * value_scale)
                there = place + layer * _whole(span, LAYER_BYTES)
                if half != 0:
                    copy_narrow(keys, there, 2 * part, _HALF_ZERO)
                else:
                    copy_narrow(keys, there, 2 * part, _ZERO)
        add_release(done, 1)
    wait(done, tasks)


_team_propose, _team_extend = on_team(_propose), on_team(_extend)


@compiled()
def propose(enter, threads, call, kind, head_kind):
    """Run `_propose` on a team; see `launching`."""
    _team_propose(enter, threads, call, kind, head_kind)


@compiled()
def extend(enter, threads, call, kind, head_kind):
    """Run `_extend` on a team; see `launching`."""
    _team_extend(enter, threads, call, kind, head_kind)
