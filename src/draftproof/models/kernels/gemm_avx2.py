"""Integer products for processors with AVX2 and without AVX512: half a panel at a time, in registers of 256 bits.

AVX2's only product of bytes (`vpmaddubsw`, unsigned by signed) adds two neighbours into an int16, which saturates. Both forms
stay below that, so that the sums are exact, with activations of at most 127:

* int4: weights are 0 to 15; a pair is at most 3810, and the eight pairs that a group adds to a lane 30480;
* int8: a weight is stored with 128 added, so ``x ^ 128`` is the weight itself, -128 to 127; its size goes in unsigned, its sign
  on the activation. A pair is at most 32512. What `Activations.sums` takes off for the added 128 is not needed.

What follows the sums is `gemm`'s chain of float32, in the same order, so the results are the same bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-not-found,import-untyped,unused-ignore]
from numba.core import cgutils

from draftproof.models.kernels.compiling import target_features
from draftproof.models.kernels.packing import AVX2_FORMS, GROUP, PANEL, TILE

_LANES = 8
_HALVES = TILE // _LANES
_QUADS = GROUP // 4
_REGISTER = 32
_HALVES_OF_PANEL = PANEL // _LANES

_BYTE, _SHORT, _INT, _LONG = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_BYTES, _SHORTS, _INTS = (ir.VectorType(kind, _REGISTER * 8 // kind.width) for kind in (_BYTE, _SHORT, _INT))
_FLOATS, _HALF_FLOATS = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(ir.HalfType(), _LANES)


def available() -> bool:
    """Whether these forms are the fastest that the processor has."""
    features = target_features()
    return features >= AVX2_FORMS and "avx512vnni" not in features


class NarrowSums:
    """Writes the code of a block of rows: the float32 sums of `rows` rows with a tile, and what adds a group to them.

    Args:
        int4: weights are int4, else int8.
    """

    def __init__(self, builder: Any, rows: int, int4: bool) -> None:
        self._builder, self._rows, self._int4 = builder, rows, int4
        zero = ir.Constant(_FLOATS, [0.0] * _LANES)
        memory = cgutils.alloca_once(builder, _FLOATS, size=rows * _HALVES)
        self._totals = builder.ptrtoint(memory, _LONG)
        for place in range(rows * _HALVES):
            self._keep(zero, self._at(self._totals, place * _REGISTER))

    def add_group(self, weights: Any, values: list[Any], scales: list[Any], sums: list[Any]) -> None:
        """Add one group's part.

        Args:
            weights: address of the tile's group.
            values, scales, sums: addresses of the group of every row's activations.
        """
        builder, four = self._builder, self._int4
        expanded = self._expanded(values) if four else values
        stored = _QUADS // 2 if four else _QUADS
        after = stored * PANEL * 4 * (TILE // PANEL)
        with cgutils.for_range(builder, _LONG(_HALVES)) as loop:
            half = loop.index
            panel = builder.udiv(half, _LONG(_HALVES_OF_PANEL))
            place = builder.mul(builder.urem(half, _LONG(_HALVES_OF_PANEL)), _LONG(_REGISTER))
            place = builder.add(place, builder.mul(panel, _LONG(stored * PANEL * 4)))
            here = builder.add(weights, place)
            whole = self._four(here, expanded) if four else self._eight(here, expanded)
            halves = self._at(builder.add(weights, builder.mul(half, _LONG(_LANES * 2))), after)
            scale = self._half_floats(halves)
            minimum = self._half_floats(self._at(halves, TILE * 2)) if four else None
            for row in range(self._rows):
                at = builder.mul(builder.add(half, _LONG(row * _HALVES)), _LONG(_REGISTER))
                at = builder.add(self._totals, at)
                both = builder.fmul(scale, self._everywhere(scales[row], _FLOATS))
                total = self._fma(builder.sitofp(whole[row], _FLOATS), both, self._load(at, _FLOATS))
                if minimum is not None:
                    total = self._fma(minimum, self._everywhere(sums[row], _FLOATS), total)
                self._keep(total, at)

    def write(self, row: int, address: Any) -> None:
        """Store a row's sums: float32 ``[TILE]``."""
        for half in range(_HALVES):
            total = self._load(self._at(self._totals, (row * _HALVES + half) * _REGISTER), _FLOATS)
            self._keep(total, self._at(address, half * _REGISTER))

    # --- integer sums ---------------------------------------------------------------------------------------------

    def _expanded(self, values: list[Any]) -> list[list[Any]]:
        """Every row's quads of activations, each in all lanes.

        They are more than there are registers; from the stack they are read by the very products that use them.
        """
        return [
            [self._builder.bitcast(self._quad(value, quad), _BYTES) for quad in range(_QUADS)]
            for value in values
        ]

    def _four(self, weights: Any, activations: list[list[Any]]) -> list[Any]:
        builder, stored = self._builder, _QUADS // 2
        mask = ir.Constant(_INTS, [0x0F0F0F0F] * _LANES)
        shift = ir.Constant(_INTS, [4] * _LANES)
        totals: list[Any] = [None] * self._rows
        for quad in range(stored):
            lane = self._load(self._at(weights, quad * PANEL * 4), _INTS)
            low, high = builder.and_(lane, mask), builder.and_(builder.lshr(lane, shift), mask)
            for at, weight in ((quad, low), (quad + stored, high)):
                for row in range(self._rows):
                    pairs = self._byte_pairs(builder.bitcast(weight, _BYTES), activations[row][at])
                    totals[row] = pairs if totals[row] is None else builder.add(totals[row], pairs)
        return [self._short_pairs(total) for total in totals]

    def _eight(self, weights: Any, values: list[Any]) -> list[Any]:
        builder = self._builder
        flip = ir.Constant(_BYTES, [-128] * _REGISTER)
        totals: list[Any] = [None] * self._rows
        for quad in range(_QUADS):
            weight = builder.xor(self._load(self._at(weights, quad * PANEL * 4), _BYTES), flip)
            size = self._with_sign_of(weight, weight)  # as unsigned bytes: 128 for -128
            for row, value in enumerate(values):
                activation = builder.bitcast(self._quad(value, quad), _BYTES)
                pairs = self._byte_pairs(size, self._with_sign_of(activation, weight))
                four = self._short_pairs(pairs)
                totals[row] = four if totals[row] is None else builder.add(totals[row], four)
        return totals

    # --- instructions ---------------------------------------------------------------------------------------------

    def _byte_pairs(self, unsigned: Any, signed: Any) -> Any:
        """int16 ``[16]``: sums of two products each of 32 unsigned and 32 signed bytes, which must fit."""
        return self._call("llvm.x86.avx2.pmadd.ub.sw", _SHORTS, [unsigned, signed])

    def _short_pairs(self, shorts: Any) -> Any:
        """int32 ``[8]``: sums of two int16 each."""
        return self._call(
            "llvm.x86.avx2.pmadd.wd", _INTS, [shorts, ir.Constant(_SHORTS, [1] * _SHORTS.count)]
        )

    def _with_sign_of(self, values: Any, signs: Any) -> Any:
        """32 bytes, negated where the other's are negative and zero where they are zero."""
        return self._call("llvm.x86.avx2.psign.b", _BYTES, [values, signs])

    def _fma(self, a: Any, b: Any, c: Any) -> Any:
        return self._call("llvm.fma.v8f32", _FLOATS, [a, b, c])

    def _half_floats(self, address: Any) -> Any:
        return self._builder.fpext(self._load(address, _HALF_FLOATS), _FLOATS)

    def _quad(self, values: Any, quad: int) -> Any:
        return self._everywhere(self._at(values, quad * 4), _INTS)

    def _everywhere(self, address: Any, kind: Any) -> Any:
        """The number at an address, in all lanes."""
        number = self._load(address, kind.element)
        one = self._builder.insert_element(ir.Constant(kind, ir.Undefined), number, _INT(0))
        return self._builder.shuffle_vector(one, one, ir.Constant(_INTS, [0] * _LANES))

    def _at(self, address: Any, offset: int) -> Any:
        return self._builder.add(address, _LONG(offset))

    def _load(self, address: Any, kind: Any) -> Any:
        return self._builder.load(self._builder.inttoptr(address, kind.as_pointer()), align=1)

    def _keep(self, value: Any, address: Any) -> None:
        self._builder.store(value, self._builder.inttoptr(address, value.type.as_pointer()), align=1)

    def _call(self, name: str, result: Any, arguments: list[Any]) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self._builder.call(cgutils.get_or_insert_function(self._builder.module, kind, name), arguments)
