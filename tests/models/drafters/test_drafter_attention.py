"""Masks and grouped attention, case by case."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.models.drafters.attention import attend, first_visible, visible
from draftproof.models.drafters.config import LayerAttention


@given(
    length=st.integers(0, 12),
    rows=st.integers(1, 6),
    window=st.one_of(st.none(), st.integers(1, 20)),
    causal=st.booleans(),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_visibility_is_the_definition(length, rows, window, causal):
    start = first_visible(length, window)
    layer = LayerAttention(window, causal)
    seen = visible(torch.arange(length, length + rows)[:, None], torch.arange(length + rows)[None], layer)
    for row in range(rows):
        for key in range(length + rows):
            q = length + row
            want = (window is None or (q - key < window and key - q < window)) and not (causal and key > q)
            assert bool(seen[row, key]) == want
            assert key >= start or not want


def test_no_more_context_is_read_than_the_window_needs():
    assert first_visible(1000, 16) == 985
    assert first_visible(3, 16) == 0
    assert first_visible(1000, None) == 0


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("with_sinks", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_grouped_attention_head_by_head(masked, with_sinks, kv_heads):
    generator = torch.Generator().manual_seed(kv_heads)
    rows, heads, keys, dim = 5, 6, 9, 8
    q = torch.randn(rows, heads, dim, generator=generator)
    k, v = torch.randn(2, kv_heads, keys, dim, generator=generator)
    seen = torch.ones(rows, keys).tril(keys - rows).bool() if masked else None
    sinks = torch.randn(heads, generator=generator) if with_sinks else None
    bias = None if seen is None else torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None]
    out = attend(q[None], k[None], v[None], bias, sinks).view(rows, heads, dim)
    for head in range(heads):
        kv = head // (heads // kv_heads)
        scores = q[:, head] @ k[kv].T / dim**0.5
        weights = scores.exp() if seen is None else scores.exp() * seen
        total = weights.sum(-1, keepdim=True) + (sinks[head].exp() if with_sinks else 0)
        torch.testing.assert_close(out[:, head], weights / total @ v[kv], atol=1e-5, rtol=1e-5)
