"""Memory is used again, but never while somebody holds it."""

from __future__ import annotations

import torch

from draftproof.models.fused.recycled import LARGEST_KEPT, MOST_KEPT, RecycledRows


def test_used_again_once_let_go() -> None:
    rows = RecycledRows(8)
    first = rows.take(3)
    place = first.data_ptr()
    del first
    assert rows.take(2).data_ptr() == place
    assert rows.take(4).data_ptr() == place


def test_never_while_held() -> None:
    rows = RecycledRows(8)
    held = [rows.take(3) for _ in range(3 * MOST_KEPT)]
    views = [tensor[1:].view(-1)[3:] for tensor in held]
    del held
    for number, view in enumerate(views):
        view.fill_(number)
    assert [view.unique().tolist() for view in views] == [[float(n)] for n in range(len(views))]


def test_held_by_anything_that_shares_memory() -> None:
    rows = RecycledRows(8)
    tensor = rows.take(2)
    array, part = tensor.numpy(), tensor.detach()[:1]
    place = tensor.data_ptr()
    del tensor
    assert rows.take(2).data_ptr() != place
    del array
    assert rows.take(2).data_ptr() != place
    del part
    assert rows.take(2).data_ptr() in {place, rows.take(2).data_ptr()}


def test_sizes() -> None:
    rows = RecycledRows(1024)
    assert rows.take(0).shape == (0, 1024)
    for count in (1, 5, 64, 3, 200):
        assert rows.take(count).shape == (count, 1024)
    huge = rows.take(LARGEST_KEPT // 4096 + 1)
    place = huge.data_ptr()
    del huge
    assert rows.take(1).data_ptr() != place
    assert rows.take(1).dtype == torch.float32
