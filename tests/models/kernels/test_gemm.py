"""Compiled products: equal to the plain form, and every row the same in any company."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.models.kernels import gemm, gemm_reference
from draftproof.models.kernels.packing import TILE, Activations, PackedWeight, Precision, pack

WHOLE = (Precision.INT8, Precision.INT4)
EXACT = (Precision.FLOAT32, *WHOLE)
SHAPES = [(96, 64), (1, 1), (33, 31), (100, 75), (7, 200)]


def make(
    shape: tuple[int, int], precision: Precision, rows: int, seed: int = 0, bias: bool = False
) -> tuple[PackedWeight, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator) * 0.1
    x = torch.randn(rows, shape[1], generator=generator) * torch.rand(rows, 1, generator=generator) * 4
    return pack(weight, precision, torch.randn(shape[0], generator=generator) if bias else None), x


def same_activations(a: Activations, b: Activations) -> bool:
    pairs = ((a.values, b.values), (a.scales, b.scales), (a.sums, b.sums))
    for one, other in pairs:
        if one is None or other is None:
            if one is not other:
                return False
        elif not torch.equal(one.nan_to_num(nan=-1e9), other.nan_to_num(nan=-1e9)):
            return False
    return True


def product_rows(weight: PackedWeight, acts: Activations, first: int, rows: int) -> torch.Tensor:
    """Some rows of all tiles; what lies around the place for them must stay as it was."""
    stride = weight.padded_out + 5
    out = torch.full((rows + 2, stride), 7.0)
    data, scales, _ = weight.address()
    for tile in range(weight.tiles):
        there = out[1].data_ptr() + tile * TILE * 4
        gemm.product(
            data,
            scales,
            weight.padded_in,
            tile,
            *acts.address(),
            first,
            rows,
            there,
            stride,
            weight.kind,
        )
    found = out[1 : rows + 1, : weight.out_features].clone()
    out[1 : rows + 1, : weight.padded_out] = 7.0
    assert bool((out == 7.0).all())
    return found


@pytest.mark.parametrize("precision", list(Precision))
@given(
    shape=st.tuples(st.integers(1, 100), st.integers(1, 200)),
    rows=st.integers(1, 20),
    seed=st.integers(0, 999),
    bias=st.booleans(),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_agrees_with_the_plain_form(
    precision: Precision, shape: tuple[int, int], rows: int, seed: int, bias: bool
) -> None:
    weight, x = make(shape, precision, rows, seed, bias)
    acts = gemm.prepared(x, weight)
    plain = gemm_reference.prepare(x, weight.padded_in, precision)
    assert same_activations(acts, plain)
    expected = gemm_reference.product(plain, weight)
    if weight.bias is not None:
        expected = expected + weight.bias[: shape[0]]
    found = gemm.multiply(x, weight)
    if precision in EXACT:
        assert torch.equal(found, expected)
    else:
        values, stored = x.bfloat16().double(), weight.unpack().double()
        size = values.abs() @ stored.abs().T + 1.0
        assert bool(((found - expected).abs() <= size * shape[1] * 2.0**-24 + 1e-6).all())


@pytest.mark.parametrize("precision", list(Precision))
def test_close_to_the_exact_product(precision: Precision) -> None:
    weight, x = make((130, 576), precision, 16)
    exact = x.double() @ weight.unpack().double().T
    found = gemm.multiply(x, weight).double()
    error = (found - exact).norm() / exact.norm()
    # Eight bits a value, or a float format's own rounding. Rounding to 8 bits with the group's largest at 127 costs about
    # (largest / root mean square = 2.1 on 32 normal numbers) / 127 / sqrt(12) = 0.5% of a row's norm.
    limits = {
        Precision.FLOAT32: 1e-6,
        Precision.BFLOAT16: 3e-3,
        Precision.INT8: 7e-3,
        Precision.INT4: 7e-3,
    }
    assert float(error) < limits[precision]


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_the_same_in_any_company(precision: Precision, shape: tuple[int, int]) -> None:
    weight, x = make(shape, precision, 96)
    acts = gemm.prepared(x, weight)
    whole = product_rows(weight, acts, 0, 96)
    singly = torch.cat([product_rows(weight, acts, row, 1) for row in range(96)])
    assert torch.equal(singly, whole)
    for rows in range(1, 71):
        first = rows * 37 % (96 - rows + 1)
        assert torch.equal(product_rows(weight, acts, first, rows), whole[first : first + rows]), rows


@pytest.mark.parametrize("precision", list(Precision))
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_order_and_neighbours_do_not_matter(precision: Precision, data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 70), st.integers(1, 100)))
    weight, x = make(shape, precision, 24)
    alone = gemm.multiply(x, weight)
    chosen = data.draw(st.lists(st.integers(0, 23), min_size=1, max_size=40))
    company = x[chosen].clone()
    for index in data.draw(st.lists(st.integers(0, len(chosen) - 1), max_size=3)):
        company[index] = data.draw(st.sampled_from([float("nan"), float("inf"), 1e30, 0.0]))
        chosen[index] = -1
    found = gemm.multiply(company, weight)
    for index, row in enumerate(chosen):
        assert row < 0 or torch.equal(found[index], alone[row])


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_shows_in_its_row_only(precision: Precision, wrong: float) -> None:
    weight, x = make((70, 75), precision, 9)
    clean = gemm.multiply(x, weight)
    for column in (0, 31, 32, 74):
        dirty = x.clone()
        dirty[4, column] = wrong
        found = gemm.multiply(dirty, weight)
        assert not bool(torch.isfinite(found[4]).any())
        if precision in WHOLE:
            assert bool(torch.isnan(found[4]).all())
        rest = [row for row in range(9) if row != 4]
        assert torch.equal(found[rest], clean[rest])


@pytest.mark.parametrize("precision", list(Precision))
def test_extreme_rows(precision: Precision) -> None:
    weight, _ = make((40, 64), precision, 1)
    x = torch.stack(
        [
            torch.zeros(64),
            torch.full((64,), 1e-45),
            torch.full((64,), 2.0**-101),
            torch.full((64,), 2.0**-100),
            torch.full((64,), 3e38),
            torch.cat([torch.full((32,), 1e-38), torch.full((32,), 1.0)]),
        ]
    )
    acts = gemm.prepared(x, weight)
    assert same_activations(acts, gemm_reference.prepare(x, 64, precision))
    found = gemm.multiply(x, weight)
    assert not bool(found[0].any())
    assert bool(torch.isfinite(found[[0, 1, 2, 3, 5]]).all())
    if precision in WHOLE:
        assert not bool(found[1].any())
        assert not bool(found[2].any())


@pytest.mark.parametrize("precision", WHOLE)
def test_halves_are_rounded_to_even(precision: Precision) -> None:
    weight, _ = make((32, 32), precision, 1)
    x = torch.arange(-16, 16).float()[None] + 0.5
    x[0, 0] = 127.0
    acts = gemm.prepared(x, weight)
    assert torch.equal(acts.values[0].float(), x[0].round())


def test_integer_products_are_exact_at_their_limits() -> None:
    for precision in WHOLE:
        for sign in (1.0, -1.0):
            weight = torch.full((32, 64), -1.0)
            weight[:, ::2] = 1.0
            packed = pack(weight, precision)
            x = weight[:3] * sign * 127.0
            stored = packed.unpack().double()
            found = gemm.multiply(x.contiguous(), packed).double()
            exact = x.double() @ stored.T
            assert float((found - exact).abs().max()) <= 1e-6 * float(exact.abs().max())


def test_rows_of_another_shape_are_refused() -> None:
    weight, x = make((32, 40), Precision.INT8, 3)
    with pytest.raises(ValueError, match="rows are float32"):
        gemm.prepared(x[:, :39].contiguous(), weight)
    with pytest.raises(ValueError, match="rows are float32"):
        gemm.prepared(x.double(), weight)


@given(
    numbers=st.lists(st.tuples(*[st.floats(width=32, allow_nan=False)] * 3), min_size=1, max_size=20),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_plain_forms_multiply_add_rounds_once(numbers: list[tuple[float, float, float]]) -> None:
    from fractions import Fraction

    a, b, c = (torch.tensor(column, dtype=torch.float32) for column in zip(*numbers, strict=True))
    found = gemm_reference.fused_multiply_add(a, b, c)
    for index, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        if not all(map(torch.isfinite, (a[index], b[index], c[index], found[index]))):
            continue
        exact, result = Fraction(x) * Fraction(y) + Fraction(z), found[index]
        error = abs(Fraction(float(result)) - exact)
        for towards in (-torch.inf, torch.inf):
            neighbour = torch.nextafter(result, torch.tensor(towards))
            if torch.isfinite(neighbour):
                assert error <= abs(Fraction(float(neighbour)) - exact)


ELSEWHERE = """
import sys, torch
from draftproof.models.kernels import gemm
from draftproof.models.kernels.packing import Precision, fast, pack
results = {}
given = torch.load(sys.argv[1])
for name, (weight, x) in given.items():
    assert fast(Precision(name)) == (name in sys.argv[3:]), name
    results[name] = gemm.multiply(x, pack(weight, Precision(name)))
torch.save(results, sys.argv[2])
"""


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="names x86 processors")
@pytest.mark.parametrize(
    ("processor", "features"),
    [("x86-64-v3", "+avx2,+fma,+f16c"), ("x86-64", "+sse2")],
    ids=["avx2", "sse2"],
)
def test_machines_without_the_instructions_get_the_same(
    processor: str, features: str, tmp_path: Path
) -> None:
    precisions = [Precision.BFLOAT16, *WHOLE] if "avx2" in features else [Precision.INT4]
    given_, expected = {}, {}
    for precision in precisions:
        generator = torch.Generator().manual_seed(3)
        weight, x = torch.randn(75, 100, generator=generator), torch.randn(15, 100, generator=generator)
        given_[precision.value] = (weight, x)
        expected[precision.value] = gemm.multiply(x, pack(weight, precision))
    torch.save(given_, tmp_path / "given")
    environment = {**os.environ, "NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}
    quick = ["float32", "int8", "int4"] if "avx2" in features else ["float32"]
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "given"), str(tmp_path / "found"), *quick]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found")
    for name, result in found.items():
        if name == "bfloat16":
            assert torch.allclose(result, expected[name], rtol=1e-5, atol=1e-4)
        else:
            assert torch.equal(result, expected[name])
