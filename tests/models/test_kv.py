"""Pages of keys and values: growth, copies, clearing, and how much of a sequence counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from draftproof.models.attention_pass import ForwardPass
from draftproof.models.attention_reference import AttentionRule
from draftproof.models.kv import KEY_BLOCK, LayerShape, PrivateKV, SequenceKV, TargetPages
from draftproof.models.rows import Segment

CPU = torch.device("cpu")
SHAPES = [LayerShape(2, 20, 16), None, LayerShape(1, 64, 48)]


def filled(num_pages: int, dtype: torch.dtype = torch.float32) -> TargetPages:
    """Pages in which every number tells its page: 1 + the page's number."""
    pages = TargetPages(SHAPES, num_pages, dtype, CPU)
    for page in range(num_pages):
        for stored in (*pages.keys, *pages.values):
            if stored is not None:
                stored[page] = 1 + page
    return pages


def contents(pages: TargetPages, page: int) -> set[float]:
    stored = [part[page] for part in (*pages.keys, *pages.values) if part is not None]
    return {float(number) for part in stored for number in part.unique()}


def test_shapes_and_bytes() -> None:
    pages = TargetPages(SHAPES, 3, torch.bfloat16, CPU)
    assert [None if keys is None else tuple(keys.shape) for keys in pages.keys] == [
        (3, 2, 32, 64),
        None,
        (3, 1, 64, 64),
    ]
    assert [None if values is None else tuple(values.shape) for values in pages.values] == [
        (3, 2, 64, 16),
        None,
        (3, 1, 64, 48),
    ]
    entries = sum(part[0].numel() for part in (*pages.keys, *pages.values) if part is not None)
    assert TargetPages.bytes_per_page(SHAPES, torch.bfloat16) == 2 * entries
    assert TargetPages.bytes_per_page(SHAPES, torch.float32) == 4 * entries
    assert contents(pages, 2) == {0.0}


def test_copy_and_clear_reach_all_layers_of_one_page() -> None:
    pages = filled(4)
    pages.copy(1, 3)
    pages.clear([0, 2])
    assert [contents(pages, page) for page in range(4)] == [{0.0}, {2.0}, {0.0}, {2.0}]


def test_growth_keeps_contents_and_adds_zeros() -> None:
    pages = filled(2, torch.bfloat16)
    pages.grow(5)
    pages.grow(3)
    assert pages.num_pages == 5
    assert [contents(pages, page) for page in range(5)] == [{1.0}, {2.0}, {0.0}, {0.0}, {0.0}]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's account of memory")
def test_a_large_pool_costs_nothing_until_it_is_used() -> None:
    before = resident()
    pages = TargetPages([LayerShape(8, 128, 128)] * 8, 512, torch.bfloat16, CPU)  # 1 GiB
    keys = pages.keys[7]
    assert keys is not None
    assert not keys[300, 0].any()
    pages.copy(0, 1)
    assert resident() - before < 1 << 26


def resident() -> int:
    """Bytes of real memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_rows_land_at_their_places(compiled: bool, dtype: torch.dtype) -> None:
    if compiled:
        pytest.importorskip("numba")
    pages = TargetPages([LayerShape(2, 20, 7)], 8, dtype, CPU)
    kv = SequenceKV(pages, [6, 1, 3])
    keys, values = torch.randn(2, 150, 20).to(dtype), torch.randn(2, 150, 7).to(dtype)
    for count in (1, 69, 58, 22):
        rows = slice(kv.length, kv.length + count)
        segment = Segment(kv, torch.zeros(count, dtype=torch.long), 0)
        query = torch.zeros(2, count, 20, dtype=dtype)
        ForwardPass([segment], compiled).attend(0, query, keys[:, rows], values[:, rows], AttentionRule(1.0))
        kv.length += count
    assert pages.keys[0] is not None
    assert pages.values[0] is not None
    there = pages.keys[0][[6, 1, 3]].permute(1, 0, 3, 2).reshape(2, -1, 32)
    assert torch.equal(there[:, :150, :20], keys)
    assert not there[:, 150:].any()
    assert not there[:, :, 20:].any()
    assert torch.equal(pages.values[0][[6, 1, 3]].transpose(0, 1).reshape(2, -1, 16)[:, :150, :7], values)
    assert not pages.keys[0][[0, 2, 4, 5, 7]].any()


def test_a_table_that_is_too_short_or_points_nowhere_is_an_error() -> None:
    pages = TargetPages(SHAPES, 4, torch.float32, CPU)
    with pytest.raises(RuntimeError, match="65 positions need 2 pages; the table has 1"):
        ForwardPass([Segment(SequenceKV(pages, [2], 60), torch.zeros(5, dtype=torch.long), 0)], False)
    for table in ([4, 0], [0, -1]):
        with pytest.raises(RuntimeError, match=r"0\.\.3"):
            ForwardPass([Segment(SequenceKV(pages, table, 60), torch.zeros(5, dtype=torch.long), 0)], False)


def test_private_pages_grow_by_themselves() -> None:
    kv = PrivateKV(TargetPages(SHAPES, 0, torch.float32, CPU))
    sizes = []
    for positions in (1, 64, 65, 129, 300, 100):
        kv.reserve(positions)
        sizes.append(len(kv.table))
        assert kv.table == list(range(kv.pages.num_pages))
    assert sizes == [1, 1, 2, 4, 8, 8]
    assert KEY_BLOCK * 8 >= 300


def test_commit_cannot_reach_beyond_what_was_written() -> None:
    kv = SequenceKV(TargetPages(SHAPES, 1, torch.float32, CPU), [0], length=5)
    assert (kv.length, kv.written) == (5, 5)
    kv.commit_to(3)
    assert (kv.length, kv.written) == (3, 3)
    with pytest.raises(ValueError, match="3 are written"):
        kv.commit_to(4)
