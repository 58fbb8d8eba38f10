"""The best drafter of a run so far, by decoding held-out prompts; at the end it is measured on all of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from draftproof.engine import LLM
from draftproof.engine.prompt_files import FilePrompt
from draftproof.train.evaluate import Evaluation, evaluate, first_of_each_group
from draftproof.train.folder import RunFolder, read_document, write_document
from draftproof.train.interrupts import Interrupts
from draftproof.train.layout import DrafterShape, write_drafter
from draftproof.train.record import Record
from draftproof.train.settings import TrainSettings
from draftproof.train.stage_clock import StageClock
from draftproof.train.watch import Watch


@dataclass(frozen=True)
class Measuring:
    """What a drafter is measured with.

    Attributes:
        llm: the target.
        prompts: all that are held out.
        settings: how many of them, how far.
        interrupts: looked at after every few prompts.
        watch: told how far it is.
    """

    llm: LLM
    prompts: Sequence[FilePrompt]
    settings: TrainSettings
    interrupts: Interrupts
    watch: Watch

    def during_training(self, drafter: Path, step: int) -> Evaluation:
        """On some prompts of each group."""
        some = first_of_each_group(self.prompts, self.settings.eval_prompts)
        return self._measure(drafter, some, step, self.settings.eval_tokens)

    def at_the_end(self, drafter: Path, step: int) -> Evaluation:
        """On all prompts."""
        return self._measure(drafter, self.prompts, step, self.settings.final_tokens)

    def _measure(
        self, drafter: Path, prompts: Sequence[FilePrompt], step: int, max_tokens: int
    ) -> Evaluation:
        clock = StageClock("measuring", len(prompts), self.watch.stage)

        def advance(count: int) -> None:
            self.interrupts.check()
            clock.advance(count)

        return evaluate(self.llm, drafter, prompts, step=step, max_tokens=max_tokens, advance=advance)


class Best:
    """Measures the drafters of a run as they come and keeps the best in the run's folder.

    Args:
        folder: of the run.
        shape: of its drafters.
        measuring: see there.
        record: where evaluations are noted.
        files: what lies beside a drafter's weights, by name.
    """

    def __init__(
        self,
        folder: RunFolder,
        shape: DrafterShape,
        measuring: Measuring,
        record: Record | None,
        files: Mapping[str, str],
    ) -> None:
        self._folder, self._shape, self._measuring, self._record = folder, shape, measuring, record
        self._files = files

    def take(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Measure the drafter of a step, given by its published tensors; keep it if none before was better."""
        path = self._folder.drafters / f"step-{step:08d}"
        write_drafter(path, self._shape, tensors, files=self._files)
        measured = self._measuring.during_training(path, step)
        before = self._before(measured)
        best = before is None or before.step == step or measured.mean >= before.mean
        if best:
            write_document(self._folder.best, {"drafter": path.name, **measured.as_json()})
        kept = read_best(self._folder)
        for other in self._folder.drafters.glob("*"):
            if kept is None or other.name != kept[0]:
                shutil.rmtree(other, ignore_errors=True)
        if self._record is not None:
            self._record.evaluation(measured)
        self._measuring.watch.evaluation(measured, best)

    def _before(self, measured: Evaluation) -> Evaluation | None:
        """The best so far, measured in the same way: an earlier call may have taken fewer prompts or tokens."""
        found = read_best(self._folder)
        if found is None or _asked(found[1]) == _asked(measured):
            return None if found is None else found[1]
        name, before = found
        again = self._measuring.during_training(self._folder.drafters / name, before.step)
        write_document(self._folder.best, {"drafter": name, **again.as_json()})
        return again


def _bring_up_to_date(path: Path, files: Mapping[str, str]) -> bool:
    """Let these files lie beside a drafter's weights; an earlier call may have left others. Whether that changed anything."""
    own = ("config.json", "model.safetensors")
    there = {file.name: file.read_text(encoding="utf-8") for file in path.iterdir() if file.name not in own}
    for name in there.keys() - files.keys():
        (path / name).unlink()
    for name, text in files.items():
        (path / name).write_text(text, encoding="utf-8")
    return there != dict(files)


def _asked(evaluation: Evaluation) -> tuple[int, tuple[tuple[str, int], ...]]:
    return evaluation.max_tokens, tuple((group.group, group.prompts) for group in evaluation.groups)


def read_best(folder: RunFolder) -> tuple[str, Evaluation] | None:
    """Name and figures of the best drafter so far, if its folder is still there."""
    document = read_document(folder.best)
    if document is None or not (folder.drafters / str(document["drafter"])).is_dir():
        return None
    return str(document["drafter"]), Evaluation.from_json(document)


def final_figures(
    folder: RunFolder, measuring: Measuring, files: Mapping[str, str]
) -> tuple[Path, Evaluation]:
    """The best drafter's folder, and its figures on all held-out prompts: measured, or as an earlier call has measured them.

    Args:
        folder, measuring: see `Best`.
        files: what is to lie beside its weights.
    """
    found = read_best(folder)
    assert found is not None
    path, step = folder.drafters / found[0], found[1].step
    known = None if _bring_up_to_date(path, files) else read_document(folder.final)
    if known is not None:
        final = Evaluation.from_json(known)
        whole = sum(group.prompts for group in final.groups) == len(measuring.prompts)
        if whole and (final.step, final.max_tokens) == (step, measuring.settings.final_tokens):
            return path, final
    final = measuring.at_the_end(path, step)
    write_document(folder.final, final.as_json())
    return path, final
