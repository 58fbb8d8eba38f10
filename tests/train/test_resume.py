"""Killed at a random moment of any stage and given again, a run ends as one that was left alone."""

from __future__ import annotations

import json
import random
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from run_cases import Case, losses, start, tiny_settings

from draftproof.errors import DraftproofWarning, RequestError
from draftproof.train.bars import StageProgress
from draftproof.train.checkpoints import newest_progress
from draftproof.train.folder import RunFolder
from draftproof.train.record import StepRecord, read_evaluations
from draftproof.train.run import TrainReport, train
from draftproof.train.settings import TrainSettings
from draftproof.train.watch import Watch

SETTINGS = tiny_settings(steps=24, max_tokens=40, own_prompts=12)
# The longest wait of each stage is about as long as the stage takes here.
STAGES = {"making up prompts": 0.2, "answering": 0.2, "features": 0.05, "training": 0.6, "measuring": 0.1}


@pytest.fixture(scope="module")
def whole(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "drafter"
    assert train(case.job(out), SETTINGS).finished
    return out


def same(out: Path, whole: Path) -> None:
    """Whether two runs learnt the same and measured the same."""
    mine, theirs = losses(out), losses(whole)
    assert [step for step, _ in mine] == [step for step, _ in theirs] == list(range(1, len(mine) + 1))
    assert [loss for _, loss in mine] == pytest.approx([loss for _, loss in theirs], rel=1e-5)
    assert [(one.step, one.groups) for one in read_evaluations(folder(out))] == [
        (one.step, one.groups) for one in read_evaluations(folder(whole))
    ]
    assert (out / "config.json").read_text() == (whole / "config.json").read_text()
    assert json.loads((folder(out) / "data.json").read_text()) == json.loads(
        (folder(whole) / "data.json").read_text()
    )


def folder(out: Path) -> Path:
    return out.with_name(out.name + ".training")


def test_killed_in_every_stage_it_ends_with_the_same_loss_curve(
    case: Case, whole: Path, tmp_path: Path
) -> None:
    draw, out = random.Random(5), tmp_path / "drafter"
    kills = [(stage, draw.uniform(0.0, seconds)) for stage, seconds in STAGES.items()]
    process = start(case, out, SETTINGS, kills)
    ends, err = process.communicate(timeout=150)
    assert process.returncode == 0, err[-3000:]
    assert json.loads(ends) == [-signal.SIGKILL] * len(kills), err[-3000:]
    assert not out.exists()
    assert train(case.job(out), SETTINGS).finished
    same(out, whole)


class Stopper(Watch):
    """Asks for an end as Ctrl-C does, at the n-th thing told of a stage."""

    def __init__(self, stage: str, number: int) -> None:
        self._stage, self._left = stage, number

    def stage(self, progress: StageProgress) -> None:
        self._count(progress.stage)

    def step(self, record: StepRecord, done: float) -> None:
        self._count("training")

    def _count(self, stage: str) -> None:
        if stage == self._stage:
            self._left -= 1
            if self._left == 0:
                signal.raise_signal(signal.SIGTERM)


def until_stopped(case: Case, out: Path, settings: TrainSettings, watch: Watch) -> TrainReport | None:
    try:
        return train(case.job(out), settings, watch)
    except KeyboardInterrupt:
        return None


@pytest.mark.parametrize(
    ("stage", "number"), [("answering", 1), ("features", 1), ("training", 7), ("measuring", 2)]
)
def test_a_signal_stops_a_stage_and_the_same_command_goes_on(
    stage: str, number: int, case: Case, whole: Path, tmp_path: Path
) -> None:
    out, before = tmp_path / "drafter", signal.getsignal(signal.SIGTERM)
    stopped = until_stopped(case, out, SETTINGS, Stopper(stage, number))
    assert signal.getsignal(signal.SIGTERM) is before
    assert not out.exists()
    if stage == "training":  # the step was finished and saved
        assert stopped is not None
        assert (stopped.finished, stopped.progress.step) == (False, 7)
        progress = newest_progress(folder(out) / "checkpoints")
        assert progress is not None
        assert progress.step == 7
    else:
        assert stopped is None
    assert train(case.job(out), SETTINGS).finished
    same(out, whole)


def test_a_broken_checkpoint_is_passed_over(case: Case, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    until_stopped(case, out, SETTINGS, Stopper("training", 8))
    newest = sorted((folder(out) / "checkpoints").glob("step-*"))[-1]
    model = next(path for path in newest.iterdir() if path.suffix == ".safetensors")
    model.write_bytes(model.read_bytes()[:1000])
    with pytest.warns(DraftproofWarning, match="cannot be read, going back"):
        assert train(case.job(out), SETTINGS).finished
    same(out, whole)


def test_without_a_whole_checkpoint_it_says_what_to_do(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    until_stopped(case, out, SETTINGS, Stopper("training", 2))
    for path in (folder(out) / "checkpoints").glob("step-*/*.safetensors"):
        path.write_bytes(b"")
    with (
        pytest.warns(DraftproofWarning),
        pytest.raises(RequestError, match="none of the checkpoints") as refused,
    ):
        train(case.job(out), SETTINGS)
    assert refused.value.code == "DP523"


def test_more_steps_go_on_from_the_end(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    short = tiny_settings(steps=6)
    assert train(case.job(out), short).progress.step == 6
    first = losses(out)
    longer = train(case.job(out), tiny_settings(steps=9))
    assert (longer.finished, longer.progress.step) == (True, 9)
    assert losses(out)[:6] == first
    assert [step for step, _ in losses(out)] == list(range(1, 10))


def test_another_recipe_in_the_same_folder_is_refused_unless_restarted(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    train(case.job(out), tiny_settings(steps=3))
    with pytest.raises(RequestError, match=r"holds another run: gamma was 2\.0, is 3\.0") as refused:
        train(case.job(out), tiny_settings(steps=3, gamma=3.0))
    assert refused.value.code == "DP521"
    assert train(replace(case.job(out), restart=True), tiny_settings(steps=3, gamma=3.0)).finished


def test_one_process_at_a_time(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    found: list[str] = []

    def attempt() -> None:
        with pytest.raises(RequestError) as refused:
            train(case.job(out), tiny_settings())
        found.append(refused.value.code)

    with RunFolder.beside(out).locked():
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join(60)
    assert found == ["DP522"]
