"""Anchors, labels, and how a batch is laid out."""

from __future__ import annotations

import pytest
import torch
from drafter_cases import sample
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import RequestError
from draftproof.train.anchors import block_labels, choose_anchors
from draftproof.train.blocks import lay_out, make_batch
from draftproof.train.features import Sample

MASK = 60


@settings(deadline=None, derandomize=True)
@given(start=st.integers(0, 30), rest=st.integers(0, 30), count=st.integers(1, 40), seed=st.integers(0, 99))
def test_anchors_lie_where_a_response_token_follows(start, rest, count, seed):
    length = start + rest
    anchors = choose_anchors(start, length, count, torch.Generator().manual_seed(seed)).tolist()
    places = range(max(start - 1, 0), length - 1)
    assert anchors == sorted(set(anchors))
    assert len(anchors) == min(count, len(places))
    assert all(anchor in places for anchor in anchors)


def test_every_place_gets_its_turn():
    generator = torch.Generator().manual_seed(0)
    seen = torch.cat([choose_anchors(5, 25, 4, generator) for _ in range(400)]).bincount(minlength=25)
    assert seen[:4].sum() == 0
    assert seen[24] == 0
    # 400 draws of 4 from 20 places: 80 each; six standard deviations are 48.
    assert ((seen[4:24] - 80).abs() < 48).all()


def test_the_seed_fixes_the_anchors():
    samples = [sample(40, 5, 1), sample(33, 9, 2)]
    first, again, other = (
        make_batch(samples, 6, 8, MASK, torch.Generator().manual_seed(seed)).anchor_positions
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@settings(deadline=None, derandomize=True)
@given(length=st.integers(2, 20), size=st.integers(2, 9), data=st.data())
def test_a_label_is_the_token_at_its_slot(length, size, data):
    tokens = torch.arange(100, 100 + length)
    anchor = data.draw(st.integers(0, length - 2))
    labels, inside = block_labels(tokens, torch.tensor([anchor]), size)
    want = [100 + anchor + k if anchor + k < length else None for k in range(1, size)]
    got = [int(v) if ok else None for v, ok in zip(labels[0], inside[0], strict=True)]
    assert got == want


def test_a_batch_in_full():
    first, second, empty = sample(12, 4, 1), sample(9, 2, 2), sample(5, 5, 3)
    batch = lay_out(
        [first, empty, second],
        [torch.tensor([3, 9]), torch.tensor([], dtype=torch.int64), torch.tensor([7])],
        4,
        MASK,
    )
    assert batch.row_counts == (9, 7)  # as far as the last anchor sees
    assert batch.anchor_counts == (2, 1)
    assert torch.equal(batch.features, torch.cat((first.features[:9], second.features[:7])))
    assert batch.positions.tolist() == [*range(9), *range(7)]
    assert batch.anchor_positions.tolist() == [3, 9, 7]
    assert batch.block_ids[:, 1:].unique().tolist() == [MASK]
    assert batch.block_ids[:, 0].tolist() == [first.token_ids[3], first.token_ids[9], second.token_ids[7]]
    assert batch.labels[0].tolist() == first.token_ids[4:7].tolist()
    assert batch.valid.tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    assert batch.num_labels == 6
    assert batch.block_size == 4


def test_top_tokens_stand_at_the_slot_they_belong_to():
    part = sample(12, 4, 1, top_k=3)
    batch = lay_out([part], [torch.tensor([3, 9])], 4, MASK)
    assert batch.top_ids is not None
    assert batch.top_logprobs is not None
    # Slot 1 of the anchor at the prompt's end is the response's first token.
    assert torch.equal(batch.top_ids[0], part.top_ids[:3].long())
    assert torch.equal(batch.top_logprobs[1, :2], part.top_logprobs[6:8])


def test_without_top_tokens_in_one_sample_there_are_none():
    batch = lay_out([sample(9, 3, 1, top_k=2), sample(9, 3, 2)], [torch.tensor([4])] * 2, 4, MASK)
    assert batch.top_ids is None


def test_moved_to_a_device_all_tensors_go_along():
    batch = make_batch([sample(9, 3, 1, top_k=2)], 4, 4, MASK).to("meta")
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 8
    assert all(tensor.device.type == "meta" for tensor in tensors)


def test_nothing_to_learn_is_an_error():
    with pytest.raises(RequestError) as error:
        make_batch([sample(5, 5)], 4, 8, MASK)
    assert error.value.code == "DP513"


def _broken(kind: str) -> Sample:
    good = sample(10, 4, 2, top_k=2)
    assert good.top_ids is not None
    features, top = good.features, good.top_ids
    start = good.response_start
    if kind == "rows":
        features = features[1:]
    elif kind == "width":
        features = features[:, 1:]
    elif kind == "dtype":
        features = features.bfloat16()
    elif kind == "start":
        start = 11
    else:
        top = top[1:]
    return Sample(good.token_ids, start, features, top, good.top_logprobs)


@pytest.mark.parametrize("kind", ["rows", "width", "dtype", "start", "top"])
def test_a_sample_that_contradicts_itself_or_others_is_refused(kind):
    with pytest.raises(RequestError) as error:
        make_batch([sample(10, 4, 1, top_k=2), _broken(kind)], 4, 8, MASK)
    assert error.value.code == "DP512"
    assert "sample 1" in str(error.value)
