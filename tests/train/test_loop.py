"""Steps, their order, their rates, and their end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from run_cases import Case, losses, tiny_settings
from safetensors.torch import load_file, save_file

from draftproof.errors import RequestError
from draftproof.train.bars import StageProgress
from draftproof.train.loop import generator_for, rate_at, sample_at
from draftproof.train.loss import BlockMetrics
from draftproof.train.loss_pass import figures_of, summed
from draftproof.train.record import StepRecord, read_evaluations, read_steps, smoothed
from draftproof.train.run import train
from draftproof.train.watch import Watch


def test_every_epoch_holds_every_sample_once_in_an_order_of_its_own() -> None:
    epochs = [[sample_at(3, 10 * epoch + place, 10) for place in range(10)] for epoch in range(4)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert epochs[1] == [sample_at(3, place, 10) for place in range(10, 20)]
    assert epochs[0] != [sample_at(4, place, 10) for place in range(10)]


def test_generators_follow_from_seed_and_purpose() -> None:
    def draw(*what: int | str) -> float:
        return float(torch.rand((), generator=generator_for(*what)))

    assert draw(1, "anchors", 2, 3) == draw(1, "anchors", 2, 3)
    others = [
        (1, "anchors", 2, 3),
        (2, "anchors", 2, 3),
        (1, "order", 2, 3),
        (1, "anchors", 3, 2),
        (1, "anchors", 23),
    ]
    assert len({draw(*what) for what in others}) == len(others)


def test_the_rate_rises_then_falls_along_a_cosine() -> None:
    rates = [rate_at(share / 100, 0.1, 0.2) for share in range(101)]
    assert rates[0] < 1e-4
    assert rates[:11] == sorted(rates[:11])
    assert rates[10] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.6)
    assert rates[100] == pytest.approx(0.2)


def test_figures_of_passes_are_those_of_all_their_blocks() -> None:
    one = BlockMetrics(torch.tensor([3, 1]), torch.tensor([4, 4]), accepted=4, blocks=4, cross_entropy=0.0)
    other = BlockMetrics(torch.tensor([0, 0]), torch.tensor([2, 0]), accepted=0, blocks=0, cross_entropy=0.0)
    figures = figures_of(summed(2.0, one) + summed(4.0, other), 2)
    assert (figures.loss, figures.accepted, figures.accuracy) == (3.0, 2.0, (0.5, 0.25))


def test_smoothing_is_the_mean_of_the_last_values() -> None:
    assert smoothed([4.0, 2.0, 3.0, 9.0], window=2) == [4.0, 3.0, 2.5, 6.0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "muon"},
        {"distill": 0.5, "distill_top_k": 4},
        {"precision": "bfloat16"},
        {"from_target": False},
    ],
    ids=lambda changes: "-".join(map(str, changes)) or "plain",
)
def test_the_loss_falls(changes: dict[str, object], case: Case, tmp_path: Path) -> None:
    settings = tiny_settings(
        steps=30,
        batch=8,
        micro_batch=8,
        eval_steps=30,
        greedy_share=1.0,
        learning_rate=3e-3,
        anchors=16,
        **changes,
    )
    train(case.job(tmp_path / "drafter"), settings)
    curve = [loss for _, loss in losses(tmp_path / "drafter")]
    assert sum(curve[-5:]) < 0.87 * sum(curve[:5])


def test_passes_of_any_size_give_one_gradient(case: Case, tmp_path: Path) -> None:
    """With all places taken as anchors and blocks of one guess, every label counts the same, however they are shared out."""
    curves = []
    for micro in (1, 4):
        out = tmp_path / f"by-{micro}"
        settings = tiny_settings(micro_batch=micro, steps=4, block_size=2, anchors=500, greedy_share=0.0)
        train(case.job(out), settings)
        counts = {len(row.accuracy) for row in read_steps(out.with_name(out.name + ".training"))}
        assert counts == {1}
        curves.append([loss for _, loss in losses(out)])
    # Answers are not all of one length, so a mean of means may differ a little from the mean.
    assert curves[0] == pytest.approx(curves[1], rel=0.02)


class Order(Watch):
    """Keeps what was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stage(self, progress: StageProgress) -> None:
        if not self.told or self.told[-1] != progress.stage:
            self.told.append(progress.stage)

    def step(self, record: StepRecord, done: float) -> None:
        self.told.append(f"step {record.step} {done:.2f}")


def test_steps_and_evaluations_come_in_order(case: Case, tmp_path: Path) -> None:
    order = Order()
    train(case.job(tmp_path / "drafter"), tiny_settings(steps=4, eval_steps=2), order)
    assert order.told == [
        *("answering", "features", "step 1 0.25", "step 2 0.50", "measuring", "step 3 0.75", "step 4 1.00"),
        "measuring",
    ]
    assert [one.step for one in read_evaluations(tmp_path / "drafter.training")] == [2, 4]


def test_a_time_limit_alone_makes_a_run_with_a_whole_schedule(case: Case, tmp_path: Path) -> None:
    settings = tiny_settings(steps=None, time_limit=0.06, eval_steps=1000)
    report = train(case.job(tmp_path / "drafter"), settings)
    steps = read_steps(tmp_path / "drafter.training")
    assert report.finished
    assert report.progress.seconds >= 3.6
    assert report.progress.step == len(steps) > 1
    shares = [0.0, *(one.seconds / 3.6 for one in steps[:-1])]
    assert [one.rate for one in steps] == pytest.approx(
        [rate_at(share, 0.02, 0.02) for share in shares], abs=0.02
    )


def test_weights_that_overflow_end_the_run(case: Case, tmp_path: Path) -> None:
    out, spoilt = tmp_path / "drafter", tmp_path / "spoilt"
    train(case.job(out), tiny_settings(steps=1))
    spoilt.mkdir()
    tensors = load_file(out / "model.safetensors")
    tensors["norm.weight"] = torch.full_like(tensors["norm.weight"], 3e38)
    save_file(tensors, spoilt / "model.safetensors")
    shutil.copy(out / "config.json", spoilt)
    from dataclasses import replace

    job = replace(case.job(tmp_path / "second"), start_from=spoilt)
    with pytest.raises(RequestError, match="in step 1: nothing can be learnt") as refused:
        train(job, tiny_settings(steps=3))
    assert refused.value.code == "DP525"
    assert not (tmp_path / "second").exists()
