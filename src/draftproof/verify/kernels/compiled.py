"""The compiled form of the verification rules: one call walks one sequence down its drafts.

How a row is read. A vocabulary row is cut into blocks of `BLOCK` tokens. One pass finds each block's largest logit
and, where the rule needs it, each block's mass in units of a power of two that follows the largest logit seen, so
nothing has to be known beforehand and nothing is rounded when it changes. Every later question (top-k, top-p, the
largest noisy score) first looks at the block maxima and opens only blocks that can matter.

A row's result depends on the row and its settings alone: one thread computes it, always in the same order.
"""

# The types of compiled functions are numba's business.
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-not-found,import-untyped,unused-ignore]
from numba import types
from numba.extending import intrinsic

from draftproof.verify.kernels.compiling import compiler

BLOCK, CHUNK = 64, 512
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
SOUND, NAN_ROW, INF_ROW, DEAD_ROW, BAD_DRAFT_PROB, BAD_DRAFT_ROW = 0, 1, 2, 3, 4, 5

_LOWEST, _HIGHEST = np.float32(np.finfo(np.float32).min), np.float32(np.finfo(np.float32).max)
_KEY_NEG_INF = np.int32(np.uint32(0x807FFFFF).view(np.int32))
_RANK_NEG_INF, _RANK_ZERO, _RANK_INF = np.uint32(0), np.uint32(0x7F800001), np.uint32(0xFF000001)
_FLIP = np.int32(0x7FFFFFFF)
_LOG2E = 1.4426950408889634
_NEGLIGIBLE = -60.0  # 150,000 tokens of 2**-60 add up to 1.3e-13, in a sum that is at least 1
_BINS = 256
_AHEAD = 4 * CHUNK  # tokens between what is worked on and what is fetched from memory
_SMALL = 24
_FINE = 1024
_FEW = 2000

# Adding 1.5 * 2**52 (2**23 in float32) leaves the nearest integer in the low bits of the sum.
_ROUND, _ROUND32 = 6755399441055744.0, np.float32(12582912.0)

# 2**r for r in [-1/2, 1/2] by interpolation at the Chebyshev nodes: degree 10, relative error 3.2e-16, ...
_P0, _P1, _P2 = 1.0, 0.69314718055995, 0.24022650695910097
_P3, _P4, _P5 = 0.055504108664447695, 0.0096181291076069, 0.0013333558230168296
_P6, _P7, _P8 = 0.00015403530441735424, 1.5252657258554393e-05, 1.3215442586966806e-06
_P9, _P10 = 1.0208690571348675e-07, 7.072585985243863e-09
# ... and degree 5, relative error 7.6e-8, for the rough sums.
_Q0, _Q1, _Q2 = np.float32(1.0000000754548972), np.float32(0.6931471880262288), np.float32(0.2402210748530834)
_Q3, _Q4, _Q5 = np.float32(0.05550357114219), np.float32(0.00967603191832), np.float32(0.00133908633646)

# A rough sum adds float32 powers. It is trusted as long as h = |best logit * scale| is within this limit, to a share of
# itself that `_rough_error` gives: the exponent y = l * scale - shift suffers the rounding of scale (2**-24 of
# |l * scale|) and, without fused operations, of the product (as much again) and of the difference (2**-24 of |y|). The
# tokens that make up a row's mass lie on average at |y| <= log2(vocab) + 1 < 20, hence |l * scale| < h + 20. A power
# suffers 0.7 times the error of y, and the polynomial, its rounding and the sum's add 4e-7. Some room is left.
_ROUGH_LIMIT = 64.0


_compile = compiler(Path(__file__).parent)


class Rows(NamedTuple):
    """Where the logits lie: `base` or, for 16-bit kinds, `half` is the memory, addressed by the strides."""

    base: np.ndarray  # float32
    half: np.ndarray  # uint16
    kind: int
    row_stride: int
    stride: int
    vocab: int


class Setting(NamedTuple):
    """How one sequence is sampled."""

    temperature: float
    scale: float  # powers of two per logit; finite for any temperature
    top_k: int
    top_p: float
    min_p: float
    floor: float  # log(min_p)


class Scratch(NamedTuple):
    """Memory for walks. Lists run in parallel: token ids, their logits and weights, and a list of places in them."""

    tops: np.ndarray  # uint32 [blocks], rank of each block's largest logit
    ids: np.ndarray  # int32 [vocab]
    values: np.ndarray  # float32 [vocab]
    weights: np.ndarray  # float64 [vocab]
    active: np.ndarray  # int32 [vocab]
    bins: np.ndarray  # float64 [_FINE + 16]
    chunk: np.ndarray  # float64 [CHUNK]
    rough: np.ndarray  # float32 [CHUNK]
    words: np.ndarray  # uint64 [4, BLOCK // 4]
    row: np.ndarray  # float32 [vocab] where rows have to be copied


@_compile()
def _setting_of(temperature, top_k, top_p, min_p):
    floor = math.log(min_p) if min_p > 0.0 else -np.inf
    return Setting(temperature, min(_LOG2E / temperature, 1e300), top_k, top_p, min_p, floor)


def scratch_for(rows: Rows) -> Scratch:
    """Fresh memory, to be used by one thread at a time."""
    copied = rows.kind != FLOAT32 or rows.stride != 1
    return Scratch(
        tops=np.empty((rows.vocab + BLOCK - 1) // BLOCK, np.uint32),
        ids=np.empty(rows.vocab, np.int32),
        values=np.empty(rows.vocab, np.float32),
        weights=np.empty(rows.vocab),
        active=np.empty(rows.vocab, np.int32),
        bins=np.empty(_FINE + 16),
        chunk=np.empty(CHUNK),
        rough=np.empty(CHUNK, np.float32),
        words=np.empty((4, BLOCK // 4), np.uint64),
        row=np.empty(rows.vocab if copied else 0, np.float32),
    )


@intrinsic
def _prefetch(context, address):
    """Ask for the cache line at an address (an integer) to be fetched; harmless whatever the address."""

    def generate(context, builder, signature, arguments):
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        )
        where = builder.inttoptr(arguments[0], pointer)
        builder.call(function, [where, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.uintp), generate


# --- reading a row ------------------------------------------------------------------------------------------------


@_compile()
def _widen_bfloat16(half, count, bits):
    """bfloat16 bits to float32 bits."""
    for i in range(count):
        bits[i] = np.uint32(half[i]) << np.uint32(16)


@_compile()
def _widen_float16(half, count, bits):
    """float16 bits to float32 bits."""
    for i in range(count):
        word = np.uint32(half[i])
        magnitude = np.uint32((word & np.uint32(0x7FFF)) << np.uint32(13))
        # Moving the exponent's bias by a multiplication makes subnormal halves come out right.
        finite = np.float32(magnitude.view(np.float32) * np.float32(2.0**112)).view(np.uint32)
        special = np.uint32(magnitude | np.uint32(0x7F800000))
        value = special if (word & np.uint32(0x7C00)) == np.uint32(0x7C00) else finite
        bits[i] = np.uint32(value | np.uint32((word & np.uint32(0x8000)) << np.uint32(16)))


@_compile()
def _fetch(rows, index, scratch):
    """A row as contiguous float32: in place where it is that already, else copied into `scratch`. All exact."""
    start, stride, vocab = index * rows.row_stride, rows.stride, rows.vocab
    if rows.kind == FLOAT32:
        if stride == 1:
            return rows.base[start : start + vocab]
        for i in range(vocab):
            scratch[i] = rows.base[start + i * stride]
        return scratch[:vocab]
    half = rows.half[start : start + vocab]
    if stride != 1:
        half = np.empty(vocab, np.uint16)
        for i in range(vocab):
            half[i] = rows.half[start + i * stride]
    if rows.kind == BFLOAT16:
        _widen_bfloat16(half, vocab, scratch.view(np.uint32))
    else:
        _widen_float16(half, vocab, scratch.view(np.uint32))
    return scratch[:vocab]


# A rank is a float32's place in the order of all float32, as an unsigned integer: 0 for -inf, and above _RANK_INF for
# NaN of either sign. Its maximum vectorises, and finds NaN at no extra cost.


@_compile()
def _value_of(rank):
    """The float32 of a rank."""
    key = np.int32(np.uint32(rank + np.uint32(_KEY_NEG_INF)))
    return np.int32(key ^ np.int32((key >> np.int32(31)) & _FLIP)).view(np.float32)


@_compile()
def _rank_of(value):
    """The rank of a float32; -0.0 and 0.0 share one."""
    bits = np.int32(np.float32(value).view(np.int32))
    key = np.int32(bits ^ np.int32((bits >> np.int32(31)) & _FLIP))
    return _RANK_ZERO if value == 0.0 else np.uint32(np.uint32(key) - np.uint32(_KEY_NEG_INF))


@_compile()
def _top_rank(bits, count):
    """Largest rank among values given by their bits (int32)."""
    top = np.uint32(0)
    for i in range(count):
        key = np.int32(bits[i] ^ np.int32((bits[i] >> np.int32(31)) & _FLIP))
        top = max(top, np.uint32(np.uint32(key) - np.uint32(_KEY_NEG_INF)))
    return top


@_compile(fastmath={"contract"})
def _power_block(values, count, best, scale, out):
    """``out[i] = 2 ** ((values[i] - best) * scale)`` in float64, exactly 0 below 2**-1000 and for -inf."""
    for i in range(count):
        y = (np.float64(values[i]) - best) * scale
        rounded = y + _ROUND
        r = y - (rounded - _ROUND)
        r2 = r * r
        low = (_P0 + _P1 * r) + (_P2 + _P3 * r) * r2
        high = (_P4 + _P5 * r) + (_P6 + _P7 * r) * r2
        top = (_P8 + _P9 * r) + _P10 * r2
        r4 = r2 * r2
        power = low + r4 * (high + r4 * top)
        bits = np.float64(power).view(np.int64) + (np.float64(rounded).view(np.int64) << 52)
        out[i] = np.int64(bits).view(np.float64) if y > -1000.0 else 0.0


@_compile(fastmath={"contract"})
def _rough_block(values, count, scale, shift, out):
    """``out[i] = 2 ** (values[i] * scale - shift)`` in float32, 2**-120 where smaller."""
    for i in range(count):
        y = values[i] * scale - shift
        y = y if y > np.float32(-120.0) else np.float32(-120.0)
        rounded = y + _ROUND32
        r = y - (rounded - _ROUND32)
        r2 = r * r
        power = (_Q0 + _Q1 * r) + r2 * ((_Q2 + _Q3 * r) + r2 * (_Q4 + _Q5 * r))
        exponent = np.int32(np.float32(rounded).view(np.int32) << np.int32(23))
        out[i] = np.int32(np.float32(power).view(np.int32) + exponent).view(np.float32)


@_compile(fastmath={"reassoc"})
def _sum_block(values, count):
    """Sum in float64."""
    total = 0.0
    for i in range(count):
        total += np.float64(values[i])
    return total


@_compile(fastmath={"reassoc"})
def _sum_rough(values):
    """Sum of a full chunk of float32: quarters in float32, which costs two roundings, the rest in float64."""
    quarter = CHUNK // 4
    total = 0.0
    for i in range(quarter):
        left = values[i] + values[i + quarter]
        right = values[i + 2 * quarter] + values[i + 3 * quarter]
        total += np.float64(left + right)
    return total


@_compile()
def _scan(row, scale, rough, tops, buffer):
    """One pass over the row: the rank of each block's largest logit and, if `rough`, the row's mass in float32.

    The mass is summed in units of a power of two that follows the largest logit met so far: nothing about the row
    has to be known beforehand, and a change of unit rounds nothing.

    Returns (fault, rank of the largest logit, mass relative to the best token's; -1 where there is none to trust).
    """
    vocab = row.shape[0]
    bits = row.view(np.int32)
    best, block = np.uint32(0), 0
    mass, shift, started = 0.0, 0.0, False
    address = np.uint64(row.ctypes.data)
    for start in range(0, vocab, CHUNK):
        stop = min(vocab, start + CHUNK)
        ahead = address + np.uint64(4 * (start + _AHEAD))
        for line in range(0, 4 * CHUNK, 64):
            _prefetch(ahead + np.uint64(line))
        top = np.uint32(0)
        for first in range(start, stop, BLOCK):
            count = min(BLOCK, stop - first)
            rank = _top_rank(bits[first : first + count], count)
            if rank == _RANK_ZERO - np.uint32(1):  # -0.0, which must not rank below 0.0
                rank = _RANK_ZERO
            tops[block] = rank
            block += 1
            top = max(top, rank)
        best = max(best, top)
        if not rough or top == _RANK_NEG_INF or top >= _RANK_INF:
            continue
        height = np.float64(_value_of(top)) * scale
        if not started or height > shift:
            raised = np.ceil(height)
            mass *= 2.0 ** max(shift - raised, -1000.0)
            shift, started = raised, True
        if height - shift > _NEGLIGIBLE:
            _rough_block(row[start:stop], stop - start, np.float32(scale), np.float32(shift), buffer)
            mass += _sum_rough(buffer) if stop - start == CHUNK else _sum_block(buffer, stop - start)
    if best > _RANK_INF:
        return NAN_ROW, best, -1.0
    if best == _RANK_INF:
        return INF_ROW, best, -1.0
    if best == _RANK_NEG_INF:
        return DEAD_ROW, best, -1.0
    height = np.float64(_value_of(best)) * scale
    if not rough or abs(height) > _ROUGH_LIMIT:
        return SOUND, best, -1.0
    return SOUND, best, mass * 2.0 ** (shift - height)


@_compile()
def _rough_error(best, scale):
    """Largest relative error of a rough mass; see `_ROUGH_LIMIT`."""
    return 1.2 * ((abs(best * scale) + 20.0) * 8.4e-8 + 20.0 * 4.2e-8 + 4e-7)


@_compile()
def _mass(row, best, scale, tops, buffer):
    """The row's mass relative to the best token's, in float64."""
    vocab = row.shape[0]
    total = 0.0
    for start in range(0, vocab, CHUNK):
        stop = min(vocab, start + CHUNK)
        top = np.uint32(0)
        for block in range(start // BLOCK, (stop + BLOCK - 1) // BLOCK):
            top = max(top, tops[block])
        if (np.float64(_value_of(top)) - best) * scale > _NEGLIGIBLE:
            _power_block(row[start:stop], stop - start, best, scale, buffer)
            total += _sum_block(buffer, stop - start)
    return total


# --- tokens that survive ------------------------------------------------------------------------------------------


@_compile()
def _first_at(row, tops, best_rank):
    """Lowest token whose logit is the row's largest."""
    best = _value_of(best_rank)
    for b in range(tops.shape[0]):
        if tops[b] == best_rank:
            for i in range(b * BLOCK, min(row.shape[0], (b + 1) * BLOCK)):
                if row[i] == best:
                    return i
    return -1


@_compile()
def _top_k_floor(tops, top_k):
    """A finite logit at or above which the top k lie, if there are k finite ones: the k-th largest block maximum."""
    blocks = tops.shape[0]
    if top_k >= blocks:
        return _LOWEST
    return max(_LOWEST, _value_of(np.partition(tops, blocks - top_k)[blocks - top_k]))


@_compile()
def _place_block(values, count, best, per_logit, out):
    """Bin of each value by its depth below the best logit; whatever is too deep goes to the last bin."""
    for i in range(count):
        place = (best - values[i]) * per_logit
        out[i] = np.int32(place if place < np.float32(_FINE - 1) else np.float32(_FINE - 1))


@_compile()
def _narrow_depth(best, scale, target, deepest, s):
    """Depth (in powers of two below the best logit) down to which block maxima alone have mass `target`, or -1.

    They are a lower bound of the mass of all tokens down to there. Overwrites the lists.
    """
    blocks, heads, weights, bins, places = s.tops.shape[0], s.values, s.weights, s.bins, s.ids
    per_bin = (_FINE - 1) / deepest
    for block in range(blocks):
        heads[block] = _value_of(s.tops[block])
    _power_block(heads, blocks, best, scale, weights)
    _place_block(heads, blocks, np.float32(best), np.float32(scale * per_bin), places)
    bins[:] = 0.0
    for block in range(
        blocks
    ):  # what is too deep goes to spare bins in turn: no addition waits for the one before
        place = places[block]
        bins[place + (block & 15 if place == _FINE - 1 else 0)] += weights[block]
    reached = 0.0
    for b in range(_FINE - 1):
        reached += bins[b]
        if reached >= target:
            return min((b + 1) / per_bin, deepest)
    return -1.0


@_compile()
def _count_by_depth(row, best, per_logit):
    """How many tokens lie in each of `_FINE` bins of depth; the last bin holds all the rest."""
    counts, places = np.zeros((4, _FINE), np.int32), np.empty(CHUNK, np.int32)
    for start in range(0, row.shape[0], CHUNK):
        count = min(CHUNK, row.shape[0] - start)
        _place_block(row[start : start + count], count, np.float32(best), np.float32(per_logit), places)
        for i in range(count):
            counts[i & 3, places[i]] += 1  # four sets, because neighbours often share a bin
    for b in range(_FINE):
        counts[0, b] += counts[1, b] + counts[2, b] + counts[3, b]
    return counts[0]


@_compile()
def _at_depth(best, depth, scale):
    """The logit that many powers of two below the best one; a little below rather than above; finite."""
    reach = best - depth / scale
    return max(_LOWEST, np.float32(reach - 1e-6 * abs(reach)))


@_compile(fastmath={"reassoc"})
def _sums_of_block(weights, values, count, limit):
    """(sum of the weights, sum of those whose value is above `limit`)."""
    total, above = 0.0, 0.0
    for i in range(count):
        total += weights[i]
        above += weights[i] if values[i] > limit else 0.0
    return total, above


@_compile()
def _mass_above(row, best, scale, limit, chunk):
    """(mass of the row, mass of the logits above `limit`), relative to the best token's, in float64."""
    total, above = 0.0, 0.0
    for start in range(0, row.shape[0], CHUNK):
        count = min(CHUNK, row.shape[0] - start)
        values = row[start : start + count]
        _power_block(values, count, best, scale, chunk)
        sums = _sums_of_block(chunk, values, count, limit)
        total += sums[0]
        above += sums[1]
    return total, above


@_compile()
def _count_between(values, count, floor, limit):
    """How many values lie in [floor, limit]; no jumps, so it vectorises."""
    hits = np.int32(0)
    for i in range(count):
        hits += np.int32(values[i] >= floor) & np.int32(values[i] <= limit)
    return hits


@_compile()
def _gather(row, tops, floor, limit, ids):
    """Tokens with floor <= logit <= limit, in token order. Returns how many."""
    lowest, n = _rank_of(floor), 0
    for block in range(tops.shape[0]):
        if tops[block] < lowest:
            continue
        start, stop = block * BLOCK, min(row.shape[0], (block + 1) * BLOCK)
        hits = _count_between(row[start:stop], stop - start, floor, limit)
        if hits == 0:
            continue
        if hits <= 4 and limit == _HIGHEST:  # jumps nearly always go the same way
            for i in range(start, stop):
                if row[i] >= floor:
                    ids[n] = i
                    n += 1
        else:
            for i in range(start, stop):
                ids[n] = i
                n += np.int64(row[i] >= floor) & np.int64(row[i] <= limit)
    return n


@_compile()
def _weigh(row, n, best, scale, s):
    """Logits and weights (relative to the best token's) of the n tokens listed."""
    for j in range(n):
        s.values[j] = row[s.ids[j]]
    _power_block(s.values, n, best, scale, s.weights)


@_compile()
def _total(weights, n):
    """Sum in token order, by chunks."""
    total = 0.0
    for start in range(0, n, CHUNK):
        total += _sum_block(weights[start:], min(CHUNK, n - start))
    return total


@_compile()
def _last_kept(n, before, target, best, floor, s):
    """The last of n listed tokens kept when, ranked by logit and then id, they stay while the mass before is < target.

    `before` is the mass that ranks before the whole list. Bins the range of logits, which is `best` to `floor` at
    most, enters the bin in which the target is reached, and bins that again; sorts only a handful at the end.
    Returns its (logit, id) and the mass (before, up to and with it).
    """
    values, weights, active, bins = s.values, s.weights, s.active, s.bins
    count, high, low, whole = n, best, np.float64(floor), True
    while count > _SMALL and high > low:
        per_bin = (_BINS - 1) / (high - low)
        bins[:_BINS] = 0.0
        for a in range(count):
            j = a if whole else active[a]
            bins[int((high - np.float64(values[j])) * per_bin)] += weights[j]
        last = _BINS - 1
        while last > 0 and bins[last] == 0.0:
            last -= 1
        chosen = 0
        while chosen < last and before + bins[chosen] < target:
            before += bins[chosen]
            chosen += 1
        kept = 0
        for a in range(count):
            j = a if whole else active[a]
            active[kept] = j
            kept += np.int64(int((high - np.float64(values[j])) * per_bin) == chosen)
        # From here on both ends are logits of the list, in different bins: every further round leaves some out.
        count, whole, high, low = kept, False, -np.inf, np.inf
        for a in range(count):
            high = max(high, np.float64(values[active[a]]))
            low = min(low, np.float64(values[active[a]]))
    if whole:
        for a in range(count):
            active[a] = a
    if count <= _SMALL:
        for a in range(1, count):  # insertion sort: stable, so ties stay in token order
            j = active[a]
            place = a
            while place > 0 and values[active[place - 1]] < values[j]:
                active[place] = active[place - 1]
                place -= 1
            active[place] = j
    last = 0
    while last + 1 < count and before + weights[active[last]] < target:
        before += weights[active[last]]
        last += 1
    j = active[last]
    return values[j], s.ids[j], before, before + weights[j]


@_compile()
def _top_k_cut(row, best, top_k, s):
    """List tokens that hold the top k. Returns (how many are listed, logit and id of the k-th)."""
    cut = _top_k_floor(s.tops, top_k)
    n = _gather(row, s.tops, cut, _HIGHEST, s.ids)
    if n <= top_k:
        return n, cut, np.int32(row.shape[0])
    for j in range(n):
        s.values[j] = row[s.ids[j]]
        s.weights[j] = 1.0
    cut, cut_id, _, _ = _last_kept(n, 0.0, np.float64(top_k), best, cut, s)
    return n, cut, cut_id


@_compile()
def _top_p_cut(row, best, setting, rough, s):
    """Where the nucleus ends. Returns (tokens listed, -1 if not all that stay are; logit and id of the last; mass).

    Works with the rough mass first. Unless the target comes within its error of a step of the running sum, the exact
    mass would give the same; where it does, the exact one is computed.
    """
    top_p, scale = setting.top_p, setting.scale
    margin, mass = _rough_error(best, scale), rough
    if rough < 0.0:
        margin, mass = 0.0, _mass(row, best, scale, s.tops, s.chunk)
    # Tokens that weigh less than tail / vocab each cannot weigh more than the tail together: the end is above that.
    wanted = top_p * mass * (1.0 + margin)
    tail = max(mass - wanted, 1e-300)
    deepest = max(min(math.log2(row.shape[0] / tail), 1000.0), 1e-3)
    depth = _narrow_depth(best, scale, wanted, deepest, s)
    if depth < 0.0:
        return _wide_top_p_cut(row, best, setting, mass, deepest, s)
    floor = _at_depth(best, depth, scale)
    n = _gather(row, s.tops, floor, _HIGHEST, s.ids)
    _weigh(row, n, best, scale, s)
    if _total(s.weights, n) < wanted:  # by rounding at the floor only
        return _wide_top_p_cut(row, best, setting, mass, deepest, s)
    cut, cut_id, before, after = _last_kept(n, 0.0, top_p * mass, best, floor, s)
    sure = before < top_p * mass * (1.0 - margin) and after >= wanted
    if margin > 0.0 and not sure:
        mass = _mass(row, best, scale, s.tops, s.chunk)
        cut, cut_id, before, after = _last_kept(n, 0.0, top_p * mass, best, floor, s)
    return n, cut, cut_id, after


@_compile()
def _wide_top_p_cut(row, best, setting, mass, deepest, s):
    """`_top_p_cut` for a nucleus of thousands: lists only a window that holds its end, and sums up what lies above.

    Counting tokens by depth bounds the mass down to each depth from both sides. If rounding at the bounds should
    leave the end outside after all, everything is listed.
    """
    scale, per_bin = setting.scale, (_FINE - 1) / deepest
    counts = _count_by_depth(row, best, scale * per_bin)
    first, at_most = 0, 0.0
    while first < _FINE - 2:
        at_most += counts[first] * 2.0 ** (-first / per_bin)
        if at_most >= setting.top_p * mass * (1.0 - _rough_error(best, scale)):
            break
        first += 1
    limit = _at_depth(best, first / per_bin, scale) if first > 0 else _HIGHEST
    mass, above = _mass_above(row, best, scale, limit, s.chunk)
    target = setting.top_p * mass
    last, at_least = first, above
    while last < _FINE - 2:
        at_least += counts[last] * 2.0 ** (-(last + 1) / per_bin)
        if at_least >= target:
            break
        last += 1
    floor = _at_depth(best, (last + 1) / per_bin, scale)
    n = _gather(row, s.tops, floor, limit, s.ids)
    _weigh(row, n, best, scale, s)
    if not (above < target and above + _total(s.weights, n) >= target):
        above, floor = 0.0, _LOWEST
        n = _gather(row, s.tops, floor, _HIGHEST, s.ids)
        _weigh(row, n, best, scale, s)
    cut, cut_id, _, after = _last_kept(n, above, target, best, floor, s)
    return -1, cut, cut_id, after


@_compile()
def _compress(n, cut, cut_id, s):
    """Keep listed tokens ranked at or before (cut, cut_id). Returns how many."""
    kept = 0
    for j in range(n):
        value, token = s.values[j], s.ids[j]
        s.ids[kept], s.values[kept], s.weights[kept] = token, value, s.weights[j]
        kept += np.int64(value > cut or (value == cut and token <= cut_id))
    return kept


@_compile()
def _drop_below_floor(n, best, setting, s):
    """Keep listed tokens that min-p leaves. Returns how many."""
    kept = 0
    for j in range(n):
        s.ids[kept], s.values[kept], s.weights[kept] = s.ids[j], s.values[j], s.weights[j]
        kept += np.int64((np.float64(s.values[j]) - best) / setting.temperature >= setting.floor)
    return kept


@_compile()
def _select(row, best, setting, rough, s):
    """Top-k, then top-p over its survivors; at least one of the two is on.

    Returns (tokens listed, among them all survivors, or -1; logit and id of the last survivor; mass of the survivors).
    """
    if setting.top_k >= row.shape[0]:
        return _top_p_cut(row, best, setting, rough, s)
    n, cut, cut_id = _top_k_cut(row, best, setting.top_k, s)
    _weigh(row, n, best, setting.scale, s)
    n = _compress(n, cut, cut_id, s)
    mass = _total(s.weights, n)
    if setting.top_p < 1.0:
        cut, cut_id, _, mass = _last_kept(n, 0.0, setting.top_p * mass, best, cut, s)
    return n, cut, cut_id, mass


@_compile()
def _list_survivors(row, listed, best, setting, cut, cut_id, s):
    """List tokens ranked at or before (cut, cut_id) that min-p leaves, with weights. Returns how many.

    `listed` tokens that hold them all may be listed already; -1 if not.
    """
    n = listed
    if n < 0:
        floor = cut
        if setting.min_p > 0.0:  # a little below the floor, so that rounding to float32 loses nothing
            reach = best + setting.temperature * setting.floor
            floor = max(floor, np.float32(reach - 1e-6 * abs(reach) - 1e-30))
        n = _gather(row, s.tops, floor, _HIGHEST, s.ids)
        _weigh(row, n, best, setting.scale, s)
    n = _compress(n, cut, cut_id, s)
    return _drop_below_floor(n, best, setting, s) if setting.min_p > 0.0 else n


# --- drafter-invariant choice -------------------------------------------------------------------------------------

_U32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@_compile(inline="always")
def _philox(c0, c1, c2, c3, k0, k1):
    """Philox-4x32-10; see `draftproof.verify.gumbel`. 32-bit words in uint64."""
    for _ in range(10):
        product0 = _M0 * (c0 & _U32)
        product1 = _M1 * (c2 & _U32)
        c0 = (product1 >> _S32) ^ c1 ^ k0
        c2 = (product0 >> _S32) ^ c3 ^ k1
        c1 = product1 & _U32
        c3 = product0 & _U32
        k0 = (k0 + _W0) & _U32
        k1 = (k1 + _W1) & _U32
    return c0, c1, c2, c3


@_compile()
def _high_words(first_group, seed, position, words):
    """High halves of the integers of `BLOCK` tokens; token ``4 * j + i`` of the block at ``words[i, j]``."""
    k0, k1 = seed & _U32, seed >> _S32
    p0, p1 = position & _U32, position >> _S32
    w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
    for j in range(BLOCK // 4):
        x0, x1, x2, x3 = _philox(first_group + np.uint64(j), p0, p1, np.uint64(0), k0, k1)
        w0[j] = x0
        w1[j] = x1
        w2[j] = x2
        w3[j] = x3


@_compile()
def _word(token, half, seed, position):
    """High (half 0) or low (half 1) word of a token's integer."""
    words = _philox(
        np.uint64(token >> 2), position & _U32, position >> _S32, np.uint64(half), seed & _U32, seed >> _S32
    )
    which = token & 3
    return words[0] if which == 0 else words[1] if which == 1 else words[2] if which == 2 else words[3]


@_compile()
def _noise(token, high, seed, position):
    """g(seed, position, token), given the high word of the token's integer."""
    whole = (high << _S32) | _word(token, 1, seed, position)
    if high >= np.uint64(0x80000000):
        exponential = -math.log((np.float64(~whole) + 0.5) * 2.0**-64)
    else:
        exponential = -math.log1p(-(np.float64(whole) + 0.5) * 2.0**-64)
    return -math.log(exponential)


@_compile()
def _may_win(words, limit):
    """Whether any word is <= limit."""
    least = _U32
    for i in range(4):
        line = words[i]
        for j in range(BLOCK // 4):
            least = min(least, line[j])
    return least <= limit


@_compile()
def _limit(gap):
    """Largest high word with which a token `gap` below the best score so far can still reach it.

    With w >= high / 2**32, the noise is -log(-log(1 - w)) <= -log(w) <= -log(high / 2**32); it reaches the gap only
    if high <= 2**32 * exp(-gap). The margin is far above the rounding of all of this.
    """
    if gap <= 0.0:
        return _U32
    return np.uint64(4294967296.0 * math.exp(-gap) * (1.0 + 1e-9) + 1.0)


@_compile()
def _loudest_listed(n, best, setting, cut, cut_id, seed, position, s):
    """Argmax of score + noise over the n listed tokens that survive; the lowest id on ties."""
    score, winner = -np.inf, np.int64(-1)
    for j in range(n):
        value, token = s.values[j], np.int64(s.ids[j])
        own = (np.float64(value) - best) / setting.temperature
        if value < cut or (value == cut and token > cut_id) or own < setting.floor:
            continue
        high = _word(token, 0, seed, position)
        if high > _limit(score - own):
            continue
        noisy = own + _noise(token, high, seed, position)
        if noisy > score:  # in token order, so the first of equals stays
            score, winner = noisy, token
    return winner


@_compile()
def _loudest(row, best_rank, setting, cut, cut_id, seed, position, s):
    """Argmax of score + noise over all tokens that survive; the lowest id on ties."""
    vocab, tops, words = row.shape[0], s.tops, s.words
    temperature, floor = setting.temperature, setting.floor
    best = np.float64(_value_of(best_rank))
    # The best logit goes first, to have a score to beat; meeting it again changes nothing.
    winner = _first_at(row, tops, best_rank)
    score = _noise(winner, _word(winner, 0, seed, position), seed, position)
    lowest = _rank_of(cut)
    for block in range(tops.shape[0]):
        if tops[block] < lowest:
            continue
        height = (np.float64(_value_of(tops[block])) - best) / temperature
        if height < floor or height == -np.inf:
            continue
        start, limit = block * BLOCK, _limit(score - height)
        _high_words(np.uint64(start >> 2), seed, position, words)
        if not _may_win(words, limit):
            continue
        for i in range(start, min(vocab, start + BLOCK)):
            high, value = words[i & 3, (i - start) >> 2], row[i]
            if high > limit or value < cut or (value == cut and i > cut_id):
                continue
            own = (np.float64(value) - best) / temperature
            if own < floor or own == -np.inf or high > _limit(score - own):
                continue
            noisy = own + _noise(i, high, seed, position)
            if noisy > score or (noisy == score and i < winner):
                score, winner = noisy, i
    return winner


@_compile()
def walk_drafter_invariant(
    rows, candidates, lens, temperatures, top_ks, top_ps, min_ps, seeds, positions, b, s
):
    """Sequence b under the drafter-invariant rule. Returns (fault, level, accepted, bonus)."""
    n, length, vocab = candidates.shape[1], lens[b], rows.vocab
    setting = _setting_of(temperatures[b], top_ks[b], top_ps[b], min_ps[b])
    ranked = setting.top_k > 1 and (setting.top_k < vocab or setting.top_p < 1.0)
    choice = -1
    for t in range(length + 1):
        row = _fetch(rows, b * n + t, s.row)
        fault, best_rank, rough = _scan(
            row, setting.scale, ranked and setting.top_k >= vocab, s.tops, s.rough
        )
        if fault != SOUND:
            return fault, t, t, -1
        if setting.top_k == 1:
            choice = _first_at(row, s.tops, best_rank)
        else:
            best, seed, position = (
                np.float64(_value_of(best_rank)),
                np.uint64(seeds[b]),
                np.uint64(positions[b] + t),
            )
            listed, cut, cut_id = -1, _LOWEST, np.int32(vocab)
            if ranked:
                listed, cut, cut_id, _ = _select(row, best, setting, rough, s)
            if 0 <= listed <= _FEW:
                choice = _loudest_listed(listed, best, setting, cut, cut_id, seed, position, s)
            else:
                choice = _loudest(row, best_rank, setting, cut, cut_id, seed, position, s)
        if t < length and candidates[b, t + 1] != choice:
            return SOUND, t, t, choice
    return SOUND, length, length, choice


# --- greedy -------------------------------------------------------------------------------------------------------


@_compile()
def _argmax(row):
    """(whether there is no NaN, lowest token with the largest logit): block maxima by rank, then the block's first."""
    vocab = row.shape[0]
    bits = row.view(np.int32)
    best, where = np.uint32(0), 0
    address = np.uint64(row.ctypes.data)
    for start in range(0, vocab, BLOCK):
        ahead = address + np.uint64(4 * (start + _AHEAD))
        for line in range(0, 4 * BLOCK, 64):
            _prefetch(ahead + np.uint64(line))
        count = min(BLOCK, vocab - start)
        rank = _top_rank(bits[start : start + count], count)
        if rank == _RANK_ZERO - np.uint32(1):  # -0.0, which must not rank below 0.0
            rank = _RANK_ZERO
        if rank > best:
            best, where = rank, start
    if best > _RANK_INF:
        return False, np.int64(-1)
    value = _value_of(best)
    for i in range(where, min(vocab, where + BLOCK)):
        if row[i] == value:
            return True, np.int64(i)
    return True, np.int64(0)


@_compile()
def walk_greedy(rows, table, begin, end, out, first):
    """Sequences under the greedy rule, one after the other; see `kernels.greedy` for `table`."""
    scratch = np.empty(rows.vocab if rows.kind != FLOAT32 or rows.stride != 1 else 0, np.float32)
    place = first
    while begin < end:
        row, guesses = table[begin], table[begin + 1]
        accepted, choice, going = 0, np.int64(-1), True
        while going:
            sound, choice = _argmax(_fetch(rows, row + accepted, scratch))
            going = sound and accepted < guesses and table[begin + 2 + accepted] == choice
            if going:
                accepted += 1
        out[place, 0] = accepted
        out[place, 1] = choice
        place += 1
        begin += 2 + guesses


# --- rules with coins ---------------------------------------------------------------------------------------------


@_compile()
def _draw(weights, n, coin):
    """Inverse CDF in the order given. Returns (index, total weight); the index is -1 where there is no weight."""
    total = _total(weights, n)
    target = coin * total
    running, last = 0.0, -1
    for start in range(0, n, CHUNK):
        count = min(CHUNK, n - start)
        mass = _sum_block(weights[start:], count)
        if mass <= 0.0:
            continue
        if running + mass > target or start + CHUNK >= n:
            inner = running
            for j in range(start, start + count):
                if weights[j] > 0.0:
                    inner += weights[j]
                    last = j
                    if inner > target:
                        return j, total
        else:
            for j in range(start, start + count):
                if weights[j] > 0.0:
                    last = j
        running += mass
    return last, total


@_compile()
def _survivors(row, best_rank, setting, rough, s):
    """Returns (tokens listed, among them all survivors, or -1; logit and id of the last in rank; mass min-p leaves)."""
    vocab, best = row.shape[0], np.float64(_value_of(best_rank))
    listed, cut, cut_id, mass = -1, _LOWEST, np.int32(vocab), 1.0
    if setting.top_k == 1:
        return listed, _value_of(best_rank), np.int32(_first_at(row, s.tops, best_rank)), mass
    if setting.top_k < vocab or setting.top_p < 1.0:
        listed, cut, cut_id, mass = _select(row, best, setting, rough, s)
    elif setting.min_p <= 0.0:
        mass = _mass(row, best, setting.scale, s.tops, s.chunk)
    if setting.min_p > 0.0:
        listed = _list_survivors(row, listed, best, setting, cut, cut_id, s)
        mass = _total(s.weights, listed)
    return listed, cut, cut_id, mass


@_compile()
def _share_of(token, row, best, setting, cut, cut_id, mass, s):
    """Target probability of a token, given what `_survivors` returned."""
    value = row[token]
    if value < cut or (value == cut and token > cut_id):
        return 0.0
    if (np.float64(value) - best) / setting.temperature < setting.floor:
        return 0.0
    _power_block(row[token : token + 1], 1, best, setting.scale, s.chunk)
    return s.chunk[0] / mass


@_compile()
def _index_of(ids, n, token):
    """Where a token stands in a list in token order, or -1."""
    at = np.searchsorted(ids[:n], token)
    return at if at < n and ids[at] == token else -1


@_compile()
def walk_target_only(
    rows, candidates, temperatures, top_ks, top_ps, min_ps, coins, finals, single, acc, b, s
):
    """Sequence b under the target-only rule. Returns (fault, level, accepted, bonus)."""
    n, vocab = candidates.shape[1], rows.vocab
    setting = _setting_of(temperatures[b], top_ks[b], top_ps[b], min_ps[b])
    nucleus_only = setting.top_k >= vocab and setting.top_p < 1.0
    for t in range(n):
        row = _fetch(rows, b * n + t, s.row)
        fault, best_rank, rough = _scan(row, setting.scale, nucleus_only, s.tops, s.rough)
        if fault != SOUND:
            return fault, t, t, -1
        best = np.float64(_value_of(best_rank))
        listed, cut, cut_id, mass = _survivors(row, best_rank, setting, rough, s)
        drafted = t < n - 1
        draft = candidates[b, t + 1] if drafted else np.int64(-1)
        if drafted:
            p = _share_of(draft, row, best, setting, cut, cut_id, mass, s)
            if p > 0.0 and (coins[b, t] <= p / acc or p >= single):
                continue
        count = _list_survivors(row, listed, best, setting, cut, cut_id, s)
        at = _index_of(s.ids, count, draft)
        if at >= 0:
            s.weights[at] = 0.0
        drawn, rest = _draw(s.weights, count, finals[b])
        if drafted and rest <= 0.0:
            continue
        return SOUND, t, t, np.int64(s.ids[drawn])
    return SOUND, n - 1, n - 1, -1


@_compile()
def walk_rejection(
    rows, candidates, lens, temperatures, top_ks, top_ps, min_ps, q, q_strides, coins, finals, b, s
):
    """Sequence b under the rejection rule; `q` is flat, with three strides. Returns (fault, level, accepted, bonus)."""
    n, length, vocab = candidates.shape[1], lens[b], rows.vocab
    setting = _setting_of(temperatures[b], top_ks[b], top_ps[b], min_ps[b])
    nucleus_only = setting.top_k >= vocab and setting.top_p < 1.0
    for t in range(length + 1):
        row = _fetch(rows, b * n + t, s.row)
        fault, best_rank, rough = _scan(row, setting.scale, nucleus_only, s.tops, s.rough)
        if fault != SOUND:
            return fault, t, t, -1
        best = np.float64(_value_of(best_rank))
        start, step = b * q_strides[0] + t * q_strides[1], q_strides[2]
        drafted = t < length
        draft = candidates[b, t + 1] if drafted else np.int64(-1)
        if drafted and not q[start + draft * step] > 0.0:
            return BAD_DRAFT_PROB, t, t, draft
        listed, cut, cut_id, mass = _survivors(row, best_rank, setting, rough, s)
        if drafted:
            p = _share_of(draft, row, best, setting, cut, cut_id, mass, s)
            if coins[b, t] * q[start + draft * step] < p:
                continue
            for i in range(vocab):
                if not (q[start + i * step] >= 0.0 and q[start + i * step] < np.inf):
                    return BAD_DRAFT_ROW, t, t, draft
        count = _list_survivors(row, listed, best, setting, cut, cut_id, s)
        if drafted:
            residual = np.empty(count)
            for j in range(count):
                residual[j] = max(s.weights[j] / mass - q[start + s.ids[j] * step], 0.0)
            drawn, rest = _draw(residual, count, finals[b])
            if rest > 0.0:
                return SOUND, t, t, np.int64(s.ids[drawn])
        drawn, _ = _draw(s.weights, count, finals[b])
        return SOUND, t, t, np.int64(s.ids[drawn])
    return SOUND, length, length, -1
