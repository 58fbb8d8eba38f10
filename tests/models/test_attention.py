"""Row-invariant attention against a plain softmax attention, and against itself in other company."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.models.attention_pass import ForwardPass
from draftproof.models.attention_reference import AttentionRule
from draftproof.models.kv import LayerShape, PrivateKV, TargetPages
from draftproof.models.rows import Segment


@dataclass
class Case:
    """Queries, keys and values of a whole sequence, and what the layer asks for."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    rule: AttentionRule


def make_case(
    heads: int,
    group: int,
    dim: int,
    length: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    dtype: torch.dtype,
) -> Case:
    torch.manual_seed(length)
    kv_heads = heads // group
    queries, keys = torch.randn(heads, length, dim).to(dtype), torch.randn(kv_heads, length, dim).to(dtype)
    rule = AttentionRule(dim**-0.5, window, softcap, torch.randn(heads) if sinks else None)
    return Case(queries, keys, torch.randn(kv_heads, length, dim + 3).to(dtype), rule)


def reference(case: Case) -> torch.Tensor:
    """Softmax attention row by row, as a textbook has it, in float64."""
    heads, length, _ = case.queries.shape
    group = heads // case.keys.shape[0]
    out = torch.zeros(length, heads, case.values.shape[-1], dtype=torch.float64)
    for head in range(heads):
        for q in range(length):
            first = 0 if case.rule.window is None else max(0, q - case.rule.window + 1)
            scores = (
                case.keys[head // group, first : q + 1].double()
                @ case.queries[head, q].double()
                * case.rule.scaling
            )
            if case.rule.softcap is not None:
                scores = case.rule.softcap * torch.tanh(scores / case.rule.softcap)
            if case.rule.sinks is not None:
                scores = torch.cat([scores, case.rule.sinks[head].double()[None]])
            weights = scores.softmax(0)[: q + 1 - first]
            out[q, head] = weights @ case.values[head // group, first : q + 1].double()
    return out


def in_chunks(case: Case, lengths: list[int], noise: bool = False) -> torch.Tensor:
    """The whole sequence chunk by chunk; with `noise`, random entries lie behind every chunk, as rejected drafts leave them."""
    kv_heads, length, dim = case.keys.shape
    shape = LayerShape(kv_heads, dim, case.values.shape[-1])
    kv = PrivateKV(TargetPages([shape], 0, case.keys.dtype, case.keys.device))
    parts = []
    for count in lengths:
        rows = slice(kv.length, kv.length + count)
        if noise:
            behind = 21
            junk = torch.full((kv_heads, behind, dim), torch.nan).to(case.keys.dtype)
            attended(kv, behind)
        parts.append(attended(kv, case.queries[:, rows], case.keys[:, rows], case.values[:, rows], case.rule))
        kv.length += count
    return torch.cat(parts)


CASES = [
    (9, 3, 64, 200, None, None, False),
    (4, 4, 32, 210, 64, None, False),
    (8, 4, 16, 300, 100, 20.0, True),
    (4, 1, 20, 140, 9, None, True),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_rows_do_not_depend_on_chunks_or_what_lies_behind(
    sizes: tuple, dtype: torch.dtype, threads: int
) -> None:
    case = make_case(*sizes, dtype)
    length = case.queries.shape[1]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = in_chunks(case, [length])
        for step in (1, 5, 8, 16, 64, 100):
            lengths = [step] * (length // step) + ([length % step] if length % step else [])
            assert torch.equal(whole, in_chunks(case, lengths, noise=True)), step
    finally:
        torch.set_num_threads(before)


@given(
    group=st.sampled_from([1, 2, 3, 5]),
    kv_heads=st.integers(1, 3),
    dim=st.sampled_from([4, 16, 33]),
    length=st.integers(1, 150),
    window=st.one_of(st.none(), st.integers(1, 160)),
    softcap=st.sampled_from([None, 3.0]),
    sinks=st.booleans(),
    cut=st.integers(1, 150),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_agrees_with_textbook_attention(
    group: int,
    kv_heads: int,
    dim: int,
    length: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    cut: int,
) -> None:
    case = make_case(group * kv_heads, group, dim, length, window, softcap, sinks, torch.float32)
    first = min(cut, length)
    lengths = [first] + ([length - first] if length > first else [])
    torch.testing.assert_close(in_chunks(case, lengths).double(), reference(case), atol=2e-5, rtol=2e-5)


def test_keys_grow_without_losing_anything_and_start_as_zeros() -> None:
    store = LayerKV(2, 4, 4, torch.device("cpu"))
    rows = torch.randn(2, 300, 4)
    for start, end in [(0, 1), (1, 70), (70, 64 * 4), (64 * 4, 300)]:
        store.write(start, rows[:, start:end], rows[:, start:end])
    flat = store.keys.transpose(0, 1).reshape(2, -1, 16)
    assert torch.equal(flat[:, :300, :4], rows)
    assert not flat[:, :, 4:].any()
    assert not flat[:, 300:].any()


def test_commit_cannot_reach_beyond_what_was_written() -> None:
    kv = SequenceKV(1)
    kv.written = 5
    kv.commit_to(3)
    assert (kv.length, kv.written) == (3, 3)
    with pytest.raises(ValueError, match="3 are written"):
        kv.commit_to(4)
