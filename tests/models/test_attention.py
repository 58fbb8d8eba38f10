"""Row-invariant attention against a plain softmax attention, and against itself in other company."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.models import kernels
from draftproof.models.attention_pass import ForwardPass
from draftproof.models.attention_reference import AttentionRule
from draftproof.models.kv import KEY_BLOCK, LayerShape, PrivateKV, SequenceKV, TargetPages
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


def attend_chunk(
    kv: SequenceKV, case: Case, rows: slice, compiled: bool, neighbours: list[Segment] | None = None
) -> torch.Tensor:
    """These rows of the case in one pass, behind what `kv` holds; ``[rows, heads, value_dim]`` float32."""
    some = torch.zeros(rows.stop - rows.start, dtype=torch.long)
    current = ForwardPass([*(neighbours or []), Segment(kv, some, 0)], compiled)
    other = sum(segment.count for segment in neighbours or [])
    query, key, value = (
        torch.cat([x[:, :other] * 2, x[:, rows]], 1) for x in (case.queries, case.keys, case.values)
    )
    return current.attend(0, query, key, value, case.rule)[other:].float()


def in_chunks(case: Case, lengths: list[int], compiled: bool, noise: bool = False) -> torch.Tensor:
    """The whole sequence chunk by chunk; with `noise`, what lies behind every chunk is NaN."""
    kv, parts = private(case), []
    for length in lengths:
        kv.reserve(kv.length + length + 70)
        if noise:
            spoil(kv, kv.length)
        parts.append(attend_chunk(kv, case, slice(kv.length, kv.length + length), compiled))
        kv.length += length
    return torch.cat(parts)


def private(case: Case) -> PrivateKV:
    shape = LayerShape(case.keys.shape[0], case.keys.shape[-1], case.values.shape[-1])
    return PrivateKV(TargetPages([shape], 0, case.keys.dtype, case.keys.device))


def spoil(kv: SequenceKV, start: int) -> None:
    """Make everything from position `start` on NaN, as an overflow in a rejected draft may leave it."""
    (keys,), (values,) = kv.pages.keys, kv.pages.values
    assert keys is not None
    assert values is not None
    for index, page in enumerate(kv.table):
        offset = min(KEY_BLOCK, max(0, start - index * KEY_BLOCK))
        keys[page, :, :, offset:] = torch.nan
        values[page, :, offset:] = torch.nan


CASES = [
    (9, 3, 64, 200, None, None, False),
    (4, 4, 32, 210, 64, None, False),
    (8, 4, 16, 300, 100, 20.0, True),
    (4, 1, 20, 140, 9, None, True),
]


FORMS = [False, *([True] if kernels.available(torch.device("cpu"), torch.float32) else [])]
form = pytest.mark.parametrize("compiled", FORMS, ids=["reference", "compiled"][: len(FORMS)])


@form
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_rows_do_not_depend_on_chunks_or_what_lies_behind(
    sizes: tuple, dtype: torch.dtype, threads: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_MIN_SHARED_WORK", 0)
    case = make_case(*sizes, dtype)
    length = case.queries.shape[1]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = in_chunks(case, [length], compiled)
        for step in (1, 5, 8, 16, 64, 100):
            lengths = [step] * (length // step) + ([length % step] if length % step else [])
            assert torch.equal(whole, in_chunks(case, lengths, compiled, noise=True)), step
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
@form
def test_agrees_with_textbook_attention(
    group: int,
    kv_heads: int,
    dim: int,
    length: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    cut: int,
    compiled: bool,
) -> None:
    case = make_case(group * kv_heads, group, dim, length, window, softcap, sinks, torch.float32)
    first = min(cut, length)
    lengths = [first] + ([length - first] if length > first else [])
    torch.testing.assert_close(
        in_chunks(case, lengths, compiled).double(), reference(case), atol=2e-5, rtol=2e-5
    )


@given(
    heads=st.sampled_from([(1, 1), (3, 9), (2, 4), (1, 8)]),
    dim=st.sampled_from([16, 20, 64, 80, 128]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    window=st.one_of(st.none(), st.integers(1, 160)),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    lengths=st.lists(st.integers(1, 130), min_size=1, max_size=4),
)
@settings(max_examples=40, deadline=None, derandomize=True)
@pytest.mark.skipif(len(FORMS) == 1, reason="needs the compiled kernel")
def test_compiled_agrees_with_the_reference(
    heads: tuple[int, int],
    dim: int,
    dtype: torch.dtype,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    lengths: list[int],
) -> None:
    case = make_case(heads[1], heads[1] // heads[0], dim, sum(lengths), window, softcap, sinks, dtype)
    rounding = {torch.float32: 5e-6, torch.bfloat16: 2e-2}[dtype]  # of outputs of size 1 in the query's dtype
    plain, fast = in_chunks(case, lengths, False), in_chunks(case, lengths, True)
    torch.testing.assert_close(fast, plain, atol=rounding, rtol=rounding)


@form
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_do_not_depend_on_company_or_order_of_pages(
    dtype: torch.dtype, threads: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone in private pages, and among 12 others in a pool full of NaN, in scattered pages."""
    monkeypatch.setattr(kernels, "_MIN_SHARED_WORK", 0)
    case = make_case(6, 3, 32, 200, None, None, True, dtype)
    alone = in_chunks(case, [200], compiled)
    shape = LayerShape(2, 32, 35)
    pool = TargetPages([shape], 60, dtype, torch.device("cpu"))
    assert pool.keys[0] is not None
    assert pool.values[0] is not None
    pool.keys[0].fill_(torch.nan)
    pool.values[0].fill_(torch.nan)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(threads)).tolist()
    mine = SequenceKV(pool, order[:4])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = []
        for index, length in enumerate([1, 70, 1, 8, 8, 100, 12]):
            others = [SequenceKV(pool, [order[4 + 2 * i], order[5 + 2 * i]]) for i in range(index * 2)]
            company = [
                Segment(kv, torch.zeros(1 + i % 9, dtype=torch.long), 0) for i, kv in enumerate(others)
            ]
            some = slice(mine.length, mine.length + length)
            rows.append(attend_chunk(mine, case, some, compiled, company))
            mine.length += length
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat(rows), alone)


@form
def test_a_row_that_is_no_number_spoils_no_earlier_row(compiled: bool) -> None:
    case = make_case(4, 2, 16, 100, None, None, False, torch.float32)
    sound = in_chunks(case, [100], compiled)
    case.values[1, 70] = torch.nan
    case.keys[0, 80] = torch.nan
    out = in_chunks(case, [100], compiled)
    assert torch.equal(out[:70], sound[:70])
    assert torch.equal(out[70:80, :2], sound[70:80, :2])
    assert out[70:, 2:].isnan().any(-1).all()
    assert out[80:, :2].isnan().all()


@form
def test_a_block_whose_scores_are_all_minus_infinity_weighs_nothing(compiled: bool) -> None:
    case = make_case(2, 2, 16, 100, None, None, False, torch.float32)
    case.queries.abs_()
    case.keys[:, :KEY_BLOCK] = -torch.inf
    out = in_chunks(case, [100], compiled)
    rest = Case(case.queries[:, KEY_BLOCK:], case.keys[:, KEY_BLOCK:], case.values[:, KEY_BLOCK:], case.rule)
    assert out[:KEY_BLOCK].isnan().all()
    torch.testing.assert_close(out[KEY_BLOCK:].double(), reference(rest), atol=2e-5, rtol=2e-5)
