"""What a run leaves to look at: a line a step, TensorBoard while it runs, a picture at its end."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from draftproof.errors import DraftproofWarning, RequestError
from draftproof.train.checkpoints import write_whole
from draftproof.train.evaluate import Evaluation

STEPS, EVALUATIONS = "steps.jsonl", "evaluations.jsonl"


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step.

    Attributes:
        step: from 1.
        loss: as it was minimised, mean over the step's passes.
        accepted: acceptance length that the answers of the target would have given, bonus included.
        rate: factor on the learning rates.
        norm: of the gradient, before it was cut.
        seconds: training time so far.
        accuracy: share of right guesses at each place of a block, from the first.
    """

    step: int
    loss: float
    accepted: float
    rate: float
    norm: float
    seconds: float
    accuracy: tuple[float, ...] = field(default=())


class Record:
    """The files of one run. A run that goes on from step n forgets the lines after it: they will come again.

    Args:
        folder: of the run; made when needed.
        step: the step the run stands at.

    Raises:
        RequestError: DP526, the folder cannot be written.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.folder = folder
        keep(folder / STEPS, step)
        keep(folder / EVALUATIONS, step)
        self._steps = _appending(folder / STEPS)
        self._evaluations = _appending(folder / EVALUATIONS)
        self._board = _board(folder / "tensorboard", step)

    def step(self, record: StepRecord) -> None:
        """Note a step."""
        _write_line(self._steps, asdict(record))
        if self._board is not None:
            for name in ("loss", "accepted", "rate", "norm"):
                self._board.add_scalar(f"train/{name}", getattr(record, name), record.step)
            for place, share in enumerate(record.accuracy, 1):
                self._board.add_scalar(f"accuracy/{place}", share, record.step)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Note an evaluation."""
        _write_line(self._evaluations, evaluation.as_json())
        if self._board is not None:
            self._board.add_scalar("held-out/mean", evaluation.mean, evaluation.step)
            for group in evaluation.groups:
                self._board.add_scalar(f"held-out/{group.group}", group.acceptance_length, evaluation.step)
            self._board.flush()

    def close(self) -> None:
        """Nothing more will come."""
        self._steps.close()
        self._evaluations.close()
        if self._board is not None:
            self._board.close()


def read_steps(folder: Path) -> list[StepRecord]:
    """The loss curve of a run folder."""
    return [StepRecord(**{**row, "accuracy": tuple(row["accuracy"])}) for row in _rows(folder / STEPS)]


def read_evaluations(folder: Path) -> list[Evaluation]:
    """The evaluations during training, in order."""
    return [Evaluation.from_json(row) for row in _rows(folder / EVALUATIONS)]


def keep(path: Path, step: int) -> None:
    """Drop the lines of a file that belong to later steps, and a last one that was cut off."""
    kept = [row for row in _rows(path) if row["step"] <= step]
    if path.exists():
        text = "".join(json.dumps(row) + "\n" for row in kept)
        write_whole(path, lambda half: _fill(half, text))


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            row = json.loads(line)
        except ValueError:  # killed while writing it
            continue
        if isinstance(row, dict) and "step" in row:
            yield row


def _fill(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _appending(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise RequestError("DP526", f"cannot write {path}: {error.strerror or error}") from error


def _write_line(file: TextIO, row: dict[str, Any]) -> None:
    file.write(json.dumps(row) + "\n")
    file.flush()


def _board(folder: Path, step: int) -> Any:
    """A TensorBoard writer that drops what an earlier call wrote after `step`; None where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        warnings.warn(
            "no TensorBoard files: pip install 'draftproof[train]' for them", DraftproofWarning, stacklevel=4
        )
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)


def draw(folder: Path, path: Path) -> bool:
    """Draw the loss, the accuracy by place, and the held-out acceptance of a run into a PNG.

    Returns:
        Whether it was drawn: False, with a warning, where matplotlib is not installed or nothing was recorded.
    """
    steps, evaluations = read_steps(folder), read_evaluations(folder)
    if not steps:
        return False
    if importlib.util.find_spec("matplotlib") is None:
        warnings.warn("no plot: pip install 'draftproof[train]' for one", DraftproofWarning, stacklevel=2)
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy, held_out = figure.subplots(1, 3)
    _draw_loss(loss, steps)
    _draw_accuracy(accuracy, steps)
    _draw_held_out(held_out, evaluations, steps)
    write_whole(path, lambda half: figure.savefig(half, dpi=110, format="png"))
    return True


def _draw_loss(axes: Any, steps: list[StepRecord]) -> None:
    numbers = [record.step for record in steps]
    axes.plot(numbers, [record.loss for record in steps], alpha=0.25, color="C0")
    axes.plot(numbers, smoothed([record.loss for record in steps]), color="C0")
    axes.set(title="loss", xlabel="step")
    axes.grid(alpha=0.3)


def _draw_accuracy(axes: Any, steps: list[StepRecord]) -> None:
    numbers = [record.step for record in steps]
    for place in range(len(steps[0].accuracy)):
        shares = smoothed([record.accuracy[place] for record in steps])
        axes.plot(numbers, shares, label=str(place + 1))
    axes.set(title="right guesses, by place in the block", xlabel="step", ylim=(0, 1))
    axes.grid(alpha=0.3)
    if steps[0].accuracy:
        axes.legend(fontsize=7, ncols=2)


def _draw_held_out(axes: Any, evaluations: list[Evaluation], steps: list[StepRecord]) -> None:
    numbers = [record.step for record in steps]
    axes.plot(
        numbers,
        smoothed([record.accepted for record in steps]),
        color="0.6",
        label="training (along answers)",
    )
    names = list(dict.fromkeys(group.group for one in evaluations for group in one.groups))
    for name in names:
        points = [
            (one.step, group.acceptance_length)
            for one in evaluations
            for group in one.groups
            if group.group == name
        ]
        axes.plot(*zip(*points, strict=True), marker=".", label=name)
    axes.set(title="acceptance length, decoding held-out prompts", xlabel="step")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def smoothed(values: list[float], window: int = 50) -> list[float]:
    """Mean of each value and up to `window - 1` before it."""
    means, total = [], 0.0
    for index, value in enumerate(values):
        total += value - (values[index - window] if index >= window else 0.0)
        means.append(total / min(index + 1, window))
    return means
