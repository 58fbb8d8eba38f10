"""Row-invariant linears: every row has the bits it has alone, for any number of rows, on every route."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from draftproof.models.functional import RowInvariantFunctions
from draftproof.models.linear import (
    Route,
    RowInvariantLinear,
    packing_available,
    tiled_linear,
)

CPU = torch.device("cpu")
SHAPES = [(576, 1536), (1536, 576), (576, 192), (64, 211), (33, 47), (2048, 96), (3000, 40)]
ROUTES = [
    pytest.param(route, dtype, id=f"{route.value}-{str(dtype)[6:]}")
    for route in (Route.PACKED, Route.TILES)
    for dtype in (torch.float32, torch.bfloat16)
    if route is Route.TILES or packing_available(dtype, CPU)
]


def make(
    shape: tuple[int, int], dtype: torch.dtype, route: Route, bias: bool = False
) -> tuple[RowInvariantLinear, torch.Tensor]:
    torch.manual_seed(0)
    weight = torch.randn(shape[1], shape[0]).to(dtype)
    vector = torch.randn(shape[1]).to(dtype) if bias else None
    return RowInvariantLinear(weight, vector, route), torch.randn(512, shape[0]).to(dtype)


@pytest.mark.parametrize(("route", "dtype"), ROUTES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_the_same_in_every_number(shape: tuple[int, int], route: Route, dtype: torch.dtype) -> None:
    linear, x = make(shape, dtype, route)
    whole = linear(x)
    for count in [*range(1, 34), 63, 64, 65, 100, 129, 256, 511]:
        start = (count * 37) % (512 - count + 1)
        assert torch.equal(linear(x[start : start + count]), whole[start : start + count]), count


@pytest.mark.parametrize(("route", "dtype"), ROUTES)
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_agrees_with_stock_and_ignores_company(route: Route, dtype: torch.dtype, data: st.DataObject) -> None:
    k, n = data.draw(st.integers(1, 700)), data.draw(st.integers(1, 300))
    rows = data.draw(st.integers(1, 40))
    linear, x = make((k, n), dtype, route, bias=data.draw(st.booleans()))
    mine = x[data.draw(st.permutations(range(rows)))]
    out = linear(mine)
    stock = RowInvariantLinear(
        linear._weight if route is Route.TILES else _original((k, n), dtype), linear._bias, Route.STOCK
    )
    exact = stock(mine.double().to(dtype)).double()
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.03}[dtype]
    torch.testing.assert_close(out.double(), exact, atol=tolerance * k**0.5, rtol=tolerance)
    noise = torch.randn_like(mine) * 100
    noise[rows // 2] = mine[rows // 2]
    assert torch.equal(linear(noise)[rows // 2], out[rows // 2])


def _original(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(shape[1], shape[0]).to(dtype)


def test_keeps_leading_dimensions() -> None:
    linear, x = make((33, 47), torch.float32, Route.TILES, bias=True)
    assert linear(x[:30].view(2, 3, 5, 33)).shape == (2, 3, 5, 47)
    assert (linear.in_features, linear.out_features) == (33, 47)


def test_mode_catches_functional_linears_and_only_while_active() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(96, 640), torch.randn(100, 640)
    whole = tiled_linear(x, weight)
    with RowInvariantFunctions():
        rows = torch.cat([functional.linear(row[None], weight) for row in x])
        keyword = functional.linear(x, weight=weight)
    assert torch.equal(rows, whole)
    assert torch.equal(keyword, whole)
    torch.testing.assert_close(functional.linear(x, weight), whole, atol=1e-4, rtol=1e-4)
