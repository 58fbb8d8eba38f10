"""Elementwise functions: an element has the same bits wherever it stands, in a tensor of any size, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from draftproof.models.elementwise import ElementwiseModule, elementwise

FUNCTIONS = [torch.exp, torch.tanh, functional.silu, functional.gelu, torch.sigmoid]


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_bits_do_not_depend_on_place(function: Callable, dtype: torch.dtype, threads: int) -> None:
    del threads
    torch.manual_seed(0)
    values = (torch.randn(40_000 + 77) * 4).to(dtype)
    whole = elementwise(function, values)
    for start, count in [(0, 1), (5, 7), (100, 63), (1000, 77), (1, 32_704), (3, 33_000), (39_990, 87)]:
        assert torch.equal(elementwise(function, values[start : start + count]), whole[start : start + count])


@given(rows=st.integers(1, 40), width=st.integers(1, 200), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_agrees_with_the_plain_function(rows: int, width: int, seed: int) -> None:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).t()
    torch.testing.assert_close(elementwise(torch.exp, x), torch.exp(x))
    assert ElementwiseModule(torch.nn.SiLU())(x).shape == x.shape
