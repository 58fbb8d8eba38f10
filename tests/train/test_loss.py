"""The loss against its formula in plain operations, and the counts beside it."""

from __future__ import annotations

import math

import pytest
import torch
from drafter_cases import HIDDEN, VOCAB, checkpoint, sample, tables, trainable
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import RequestError
from draftproof.train import frozen_head
from draftproof.train.blocks import make_batch
from draftproof.train.frozen_head import HeadRows, HeadSettings, head_loss, plain_head_loss
from draftproof.train.loss import BlockMetrics, LossSettings, ReducedVocabulary, block_loss, occurring_ids

MASK = 60


def random_rows(count: int, columns: int, top_k: int, seed: int, missing: bool = False) -> HeadRows:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(count, columns, generator=generator).mul(6).softmax(-1)
    top = probs.topk(top_k, -1) if top_k else None
    ids = None if top is None else top.indices.clone()
    if ids is not None and missing:
        ids[::2, -1] = -1
    return HeadRows(
        hidden=torch.randn(count, HIDDEN, generator=generator, dtype=torch.float64).requires_grad_(),
        labels=torch.randint(0, columns, (count,), generator=generator),
        weights=torch.rand(count, generator=generator) + 0.1,
        top_ids=ids,
        top_probs=None if top is None else top.values,
    )


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    count=st.integers(1, 40),
    columns=st.integers(2, 50),
    top_k=st.integers(0, 5),
    alpha=st.sampled_from([0.0, 0.3, 1.0]),
    softcap=st.sampled_from([None, 5.0]),
    multiplier=st.sampled_from([1.0, 1.7]),
    missing=st.booleans(),
    seed=st.integers(0, 999),
)
def test_loss_and_gradient_are_those_of_plain_operations(
    count, columns, top_k, alpha, softcap, multiplier, missing, seed
):
    top_k = min(top_k, columns - 1)
    rows = random_rows(count, columns, top_k, seed, missing)
    head = torch.randn(columns, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    choice = HeadSettings(alpha, multiplier, softcap)
    want, want_right, want_nats = plain_head_loss(rows, head * 0.4, choice)
    (slope,) = torch.autograd.grad(want, rows.hidden)
    got, right, nats = head_loss(rows, head * 0.4, choice)
    (own_slope,) = torch.autograd.grad(3 * got, rows.hidden)
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own_slope / 3, slope, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(nats.double(), want_nats.double(), rtol=1e-5, atol=1e-5)
    assert torch.equal(right, want_right)


def test_tiles_make_no_difference(monkeypatch):
    rows, head = random_rows(70, 30, 3, 1), torch.randn(30, HIDDEN, dtype=torch.float64)
    whole = head_loss(rows, head, HeadSettings(0.5))
    monkeypatch.setattr(frozen_head, "_TILE_BYTES", 1)  # 16 rows each
    tiled = head_loss(rows, head, HeadSettings(0.5))
    for one, other in zip(whole, tiled, strict=True):
        torch.testing.assert_close(one, other)


def test_bfloat16_rows_stay_close_to_exact_ones():
    rows, head = random_rows(64, 50, 0, 2), torch.randn(50, HIDDEN)
    near = HeadRows(rows.hidden.detach().bfloat16().requires_grad_(), rows.labels, rows.weights)
    exact = HeadRows(near.hidden.detach().double().requires_grad_(), rows.labels, rows.weights)
    loss, _, _ = head_loss(near, head.bfloat16(), HeadSettings())
    want, _, _ = plain_head_loss(exact, head.bfloat16().double(), HeadSettings())
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(want.item(), rel=1e-2)
    (slope,) = torch.autograd.grad(loss, near.hidden)
    (exact_slope,) = torch.autograd.grad(want, exact.hidden)
    assert (slope.double() - exact_slope).norm() < 0.03 * exact_slope.norm()


def test_of_equal_logits_the_first_is_the_likeliest():
    """As greedy decoding has it: a label behind an equal one is not what would be drafted."""
    head = torch.zeros(4, HIDDEN)
    rows = HeadRows(torch.randn(2, HIDDEN), torch.tensor([0, 2]), torch.ones(2))
    assert head_loss(rows, head, HeadSettings())[1].tolist() == [True, False]


def test_a_perfect_drafter_has_no_divergence():
    """The target's own logits, whatever its k: the divergence is 0 and so is its gradient."""
    hidden = torch.randn(9, HIDDEN, dtype=torch.float64).requires_grad_()
    head = torch.randn(20, HIDDEN, dtype=torch.float64) * 0.3
    probs = (hidden @ head.T).softmax(-1).detach()
    top = probs.topk(4, -1)
    rows = HeadRows(hidden, torch.zeros(9, dtype=torch.int64), torch.ones(9), top.indices, top.values)
    loss, _, _ = head_loss(rows, head, HeadSettings(1.0))
    (slope,) = torch.autograd.grad(loss, hidden)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert float(slope.abs().max()) < 1e-6


def case(tmp_path, top_k=0):
    embedding, head = tables()
    model = trainable(checkpoint(tmp_path / "d", block_size=5), embedding, head)
    batch = make_batch(
        [sample(20, 4, 1, top_k), sample(14, 6, 2, top_k)], 6, 5, MASK, torch.Generator().manual_seed(0)
    )
    return model, batch


def test_the_whole_loss_by_hand(tmp_path):
    model, batch = case(tmp_path)
    hidden = model(batch)
    got = block_loss(model, hidden, batch, LossSettings(gamma=3.0))
    logq = model.logits(hidden).double().log_softmax(-1)
    total = weight = nats = 0.0
    right, seen, accepted, blocks = [0] * 4, [0] * 4, 0, 0
    for a in range(batch.num_anchors):
        agreed = []
        for k in range(1, 5):
            if not batch.valid[a, k - 1]:
                continue
            label = int(batch.labels[a, k - 1])
            w = math.exp(-(k - 1) / 3.0)
            loss = -logq[a, k - 1, label].item()
            total, weight, nats = total + w * loss, weight + w, nats + loss
            agreed.append(int(logq[a, k - 1].argmax()) == label)
            seen[k - 1] += 1
            right[k - 1] += agreed[-1]
        if len(agreed) == 4:
            blocks += 1
            accepted += next((i for i, ok in enumerate(agreed) if not ok), 4)
    assert float(got.loss.detach()) == pytest.approx(total / weight, rel=1e-5)
    assert float(got.weight) == pytest.approx(weight, rel=1e-5)
    assert got.metrics.cross_entropy == pytest.approx(nats, rel=1e-5)
    assert got.metrics.right.tolist() == right
    assert got.metrics.seen.tolist() == seen
    assert (got.metrics.accepted, got.metrics.blocks) == (accepted, blocks)
    assert blocks < batch.num_anchors


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_a_vocabulary_of_all_ids_changes_nothing(tmp_path, alpha):
    model, batch = case(tmp_path, top_k=4)
    hidden = model(batch)
    choice = LossSettings(distillation=alpha)
    plain = block_loss(model, hidden, batch, choice)
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0))
    reduced = block_loss(model, hidden, batch, choice, ReducedVocabulary(order, VOCAB))
    torch.testing.assert_close(reduced.loss, plain.loss, rtol=1e-5, atol=1e-6)
    assert torch.equal(reduced.metrics.right, plain.metrics.right)


def test_rows_outside_the_reduced_vocabulary_are_exact(tmp_path):
    model, batch = case(tmp_path)
    hidden = model(batch).detach().requires_grad_()
    ids = list(range(0, VOCAB, 2))
    got = block_loss(model, hidden, batch, LossSettings(gamma=4.0), ReducedVocabulary(ids, VOCAB))
    logits = model.logits(hidden)
    weights = torch.exp(-torch.arange(4) / 4.0)
    want = torch.zeros(())
    odd = 0
    for a, k in batch.valid.nonzero().tolist():
        label = int(batch.labels[a, k])
        if label % 2:
            odd += 1
            loss = torch.nn.functional.cross_entropy(logits[a, k], torch.tensor(label))
        else:
            loss = torch.nn.functional.cross_entropy(logits[a, k, ::2], torch.tensor(label // 2))
        want = want + weights[k] * loss
    want = want / weights.expand_as(batch.valid)[batch.valid].sum()
    assert 0 < odd < batch.num_labels
    torch.testing.assert_close(got.loss, want, rtol=1e-5, atol=1e-5)
    slopes = [torch.autograd.grad(loss, hidden, retain_graph=True)[0] for loss in (got.loss, want)]
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


def test_all_rows_outside_the_reduced_vocabulary(tmp_path):
    model, batch = case(tmp_path)
    hidden = model(batch)
    unused = [token for token in range(VOCAB) if token not in set(batch.labels[batch.valid].tolist())]
    got = block_loss(model, hidden, batch, LossSettings(), ReducedVocabulary(unused, VOCAB))
    torch.testing.assert_close(got.loss, block_loss(model, hidden, batch, LossSettings()).loss)


def test_without_gradients_it_still_counts(tmp_path):
    model, batch = case(tmp_path)
    with torch.no_grad():
        got = block_loss(model, model(batch), batch, LossSettings())
    assert not got.loss.requires_grad
    assert int(got.metrics.seen.sum()) == batch.num_labels


def test_training_lowers_it(tmp_path):
    """The gradient points where the loss falls: a few steps of plain descent learn one batch by heart."""
    model, batch = case(tmp_path)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(120):
        out = block_loss(model, model(batch), batch, LossSettings())
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(out.loss.detach()))
    assert losses[-1] < 0.1 * losses[0]
    assert out.metrics.acceptance_length > 4.5


def test_metrics_add_up():
    one = BlockMetrics(torch.tensor([2, 1]), torch.tensor([4, 2]), 3, 2, 1.5)
    both = one + BlockMetrics(torch.tensor([0, 1]), torch.tensor([4, 2]), 1, 2, 0.5)
    assert both.accuracy == [0.25, 0.5]
    assert both.acceptance_length == 2.0
    assert both.cross_entropy == 2.0
    assert BlockMetrics(torch.zeros(2), torch.zeros(2), 0, 0, 0.0).acceptance_length == 1.0


def test_occurring_ids():
    assert occurring_ids([[5, 3], [], [3, 9]]) == [3, 5, 9]


@pytest.mark.parametrize(
    "options", [{"gamma": 0}, {"gamma": math.nan}, {"distillation": 1.1}, {"distillation": -0.1}]
)
def test_settings_out_of_range(options):
    with pytest.raises(RequestError) as error:
        LossSettings(**options)
    assert error.value.code == "DP517"


@pytest.mark.parametrize("ids", [[], [3, 3], [-1, 2], [VOCAB]])
def test_vocabularies_that_are_none(ids):
    with pytest.raises(RequestError) as error:
        ReducedVocabulary(ids, VOCAB)
    assert error.value.code == "DP517"


def test_distillation_needs_the_targets_view(tmp_path):
    model, batch = case(tmp_path)
    with pytest.raises(RequestError) as error:
        block_loss(model, model(batch), batch, LossSettings(distillation=0.5))
    assert error.value.code == "DP517"
