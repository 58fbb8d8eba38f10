"""The training loop: steps, their learning rates, evaluations and checkpoints, on one process or several.

Nothing is drawn from a generator that lives longer than a pass: the order of the data follows from the seed and the epoch, the
anchors of a pass from the seed, the step, and the pass's place in it. So a step is the same whichever process does which of its
passes, and whether or not the run was killed in between.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from draftproof.engine.crew import Crew
from draftproof.errors import RequestError
from draftproof.train.blocks import BlockBatch, make_batch
from draftproof.train.checkpoints import Checkpoints, Progress
from draftproof.train.features import Features, Sample
from draftproof.train.interrupts import Interrupts
from draftproof.train.loss_pass import Figures, figures_of
from draftproof.train.optimizers import rate_factor
from draftproof.train.precision import autocast
from draftproof.train.record import Record, StepRecord
from draftproof.train.settings import TrainSettings

if TYPE_CHECKING:
    from accelerate import Accelerator

Tensors = Mapping[str, torch.Tensor]
_PARTS = 1_000_000
"""A run of any length as so many parts, for the schedule."""


@dataclass(frozen=True)
class Step:
    """What came of an optimizer step."""

    figures: Figures
    factor: float
    norm: float


@dataclass(frozen=True)
class LoopParts:
    """What a loop is put together from.

    Attributes:
        model: drafter and loss, as the accelerator prepared it.
        optimizer: the same; each group of its parameters has its peak rate, which the loop scales.
        source: the samples.
        mask_token_id: what fills the slots to be guessed.
        accelerator: moves, spreads and reduces.
        checkpoints: where the run goes on from.
        record: what is noted; None on all processes but the main one.
        evaluate: called on the main process with the step and the drafter's weights by their published names.
        watch: called on the main process after every step with the record and the share of the run that is done.
        interrupts: whether somebody wants it to end.
    """

    model: Any
    optimizer: Any
    source: Features
    mask_token_id: int
    accelerator: Accelerator
    checkpoints: Checkpoints
    record: Record | None
    evaluate: Callable[[int, Tensors], None]
    watch: Callable[[StepRecord, float], None]
    interrupts: Interrupts


def passes_a_step(settings: TrainSettings, processes: int) -> int:
    """Passes of one process for one optimizer step.

    Raises:
        RequestError: DP520, the batch cannot be shared out evenly.
    """
    if settings.batch % (settings.micro_batch * processes):
        raise RequestError(
            "DP520",
            f"batch must be a multiple of micro_batch x processes = {settings.micro_batch} x {processes}, "
            f"got {settings.batch}",
        )
    return settings.batch // (settings.micro_batch * processes)


class Loop:
    """Trains from where the last checkpoint left off to the end that the settings name.

    Args:
        parts: see `LoopParts`.
        settings: the recipe.

    Raises:
        RequestError: DP520, the batch cannot be shared out evenly.
    """

    def __init__(self, parts: LoopParts, settings: TrainSettings, progress: Progress) -> None:
        self.parts, self.settings, self.progress = parts, settings, progress
        self._processes = parts.accelerator.num_processes
        self._passes = passes_a_step(settings, self._processes)
        self._saved_seconds = progress.seconds
        self._crew = Crew(torch.get_num_threads())

    def run(self) -> bool:
        """Train. Returns whether the run came to its end; False after an interrupt, which left a checkpoint.

        Raises:
            RequestError: DP525, the loss is not finite any more; DP526, a file cannot be written.
        """
        while True:
            if self._evaluation_is_due():
                self._evaluate()
                self._save()
            if self.finished:
                return True
            with self.parts.interrupts.softened():
                began = time.perf_counter()
                with self._crew.at_work():
                    step = self._step()
                seconds = time.perf_counter() - began
                self._crew.done(0, 0, seconds)
                stopped = self._note(step, seconds)
                # What was learnt is safe before it is measured, which takes its time.
                if stopped or self._evaluation_is_due() or self._checkpoint_is_due():
                    self._save()
            if stopped:
                return False

    @property
    def finished(self) -> bool:
        return self.done >= 1.0

    @property
    def done(self) -> float:
        """Share of the run behind it: of its steps, or of its time where it has no number of steps."""
        steps, minutes = self.settings.steps, self.settings.time_limit
        if minutes is not None and self.progress.seconds >= minutes * 60:
            return 1.0
        if steps is not None:
            return min(1.0, self.progress.step / steps)
        assert minutes is not None
        return self.progress.seconds / (minutes * 60)

    def _step(self) -> Step:
        """One optimizer step."""
        parts, accelerator, settings = self.parts, self.parts.accelerator, self.settings
        factor = rate_at(self.done, settings.warmup, settings.final_rate)
        for group in parts.optimizer.param_groups:
            group["lr"] = settings.learning_rate * factor
        parts.model.train()
        passed = []
        for index in range(self._passes):
            batch = self._batch(accelerator.process_index * self._passes + index)
            with self._unsynced(index):
                with autocast(accelerator.device, settings.precision):
                    loss, sums = parts.model(batch)
                accelerator.backward(loss / self._passes)
            passed.append(sums)
        norm = float(accelerator.clip_grad_norm_(parts.model.parameters(), settings.clip))
        figures = figures_of(self._over_processes(passed), self._passes * self._processes)
        if not (math.isfinite(norm) and math.isfinite(figures.loss)):
            raise RequestError(
                "DP525",
                f"the loss is {figures.loss} and its gradient {norm} long in step {self.progress.step + 1}: "
                "nothing can be learnt any more",
            )
        parts.optimizer.step()
        parts.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        return Step(figures, factor, norm)

    def _over_processes(self, passed: list[torch.Tensor]) -> torch.Tensor:
        """The sum of all passes of all processes."""
        sums = torch.stack(passed).sum(0)
        if self._processes > 1:
            sums = sums.to(self.parts.accelerator.device)
            torch.distributed.all_reduce(sums)
        return sums.cpu()

    def _batch(self, place: int) -> BlockBatch:
        """The place-th pass of the step, counted over all processes."""
        settings, step = self.settings, self.progress.step
        first = step * settings.batch + place * settings.micro_batch
        numbers = [
            sample_at(settings.seed, position, len(self.parts.source))
            for position in range(first, first + settings.micro_batch)
        ]
        batch = make_batch(
            [on_cpu(sample) for sample in self.parts.source.batch(numbers)],
            settings.anchors,
            settings.block_size,
            self.parts.mask_token_id,
            generator_for(settings.seed, "anchors", step, place),
        )
        return batch.to(self.parts.accelerator.device, non_blocking=True)

    def _unsynced(self, index: int) -> AbstractContextManager[Any]:
        """Gradients travel between processes after the last pass of a step only."""
        if index == self._passes - 1 or self._processes == 1:
            return nullcontext()
        return self.parts.accelerator.no_sync(self.parts.model)  # type: ignore[no-any-return]

    def _note(self, step: Step, seconds: float) -> bool:
        """Note the step, by a clock that all processes share. Returns whether one of them wants to stop."""
        asked = self.parts.interrupts.asked
        if self._processes > 1:
            mine = torch.tensor([seconds, float(asked)], device=self.parts.accelerator.device)
            torch.distributed.all_reduce(mine, op=torch.distributed.ReduceOp.MAX)
            seconds, asked = float(mine[0]), bool(mine[1] > 0)
        self.progress.seconds += seconds
        record = StepRecord(
            step=self.progress.step,
            loss=step.figures.loss,
            accepted=step.figures.accepted,
            rate=step.factor,
            norm=step.norm,
            seconds=round(self.progress.seconds, 3),
            accuracy=tuple(round(share, 5) for share in step.figures.accuracy),
        )
        if self.parts.record is not None:
            self.parts.record.step(record)
            self.parts.watch(record, self.done)
        return asked if self._processes > 1 else self.parts.interrupts.asked

    def _evaluation_is_due(self) -> bool:
        since = self.progress.step - self.progress.evaluated_at
        if since == 0 or self.finished:
            return since > 0
        if self.settings.eval_steps is not None:
            return since >= self.settings.eval_steps
        return self.progress.seconds - self.progress.evaluated_seconds >= self.settings.eval_minutes * 60

    def _checkpoint_is_due(self) -> bool:
        every = self.settings.checkpoint_steps
        if every is not None:
            return self.progress.step % every == 0
        return self.progress.seconds - self._saved_seconds >= self.settings.checkpoint_minutes * 60

    def _evaluate(self) -> None:
        began = time.perf_counter()
        accelerator = self.parts.accelerator
        weights = accelerator.get_state_dict(self.parts.model)
        if accelerator.is_main_process:
            self.parts.evaluate(self.progress.step, published(weights))
        accelerator.wait_for_everyone()
        seconds = torch.tensor(time.perf_counter() - began, device=accelerator.device)
        if self._processes > 1:
            torch.distributed.all_reduce(seconds, op=torch.distributed.ReduceOp.MAX)
        self.progress.seconds += float(seconds)
        self.progress.evaluated_at, self.progress.evaluated_seconds = (
            self.progress.step,
            self.progress.seconds,
        )

    def _save(self) -> None:
        self.parts.checkpoints.save(self.progress)
        self._saved_seconds = self.progress.seconds


def on_cpu(sample: Sample) -> Sample:
    """A sample computed on a GPU, where batches are laid out; one that comes from disk is there already."""
    tops = (sample.top_ids, sample.top_logprobs)
    top_ids, top_logprobs = (None if top is None else top.cpu() for top in tops)
    return Sample(sample.token_ids.cpu(), sample.response_start, sample.features.cpu(), top_ids, top_logprobs)


def rate_at(done: float, warmup: float, final: float) -> float:
    """Factor on the learning rate: up from 0 over the first `warmup` of the run, then down a cosine to `final`.

    Args:
        done: share of the run behind it, 0 to 1; by steps, or by time where the run has no number of steps.
        warmup: share of the run that warms up.
        final: the factor at the end.
    """
    return rate_factor(round(done * _PARTS), _PARTS, round(warmup * _PARTS), final)


def generator_for(seed: int, *what: int | str) -> torch.Generator:
    """A generator for one purpose, whose stream depends on nothing else than the seed and the purpose."""
    said = "/".join(map(str, (seed, *what)))
    number = int.from_bytes(hashlib.sha256(said.encode()).digest()[:7], "big")
    return torch.Generator().manual_seed(number)


def sample_at(seed: int, position: int, count: int) -> int:
    """Number of the sample at a position of the endless stream of data: `count` samples in a new order every epoch."""
    return _order(seed, position // count, count)[position % count]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=generator_for(seed, "order", epoch)).tolist()
    return order


def published(weights: Tensors) -> dict[str, torch.Tensor]:
    """The drafter's own weights, by their published names, in a state dict of the `LossPass` around it."""
    head = "drafter."
    return {name.removeprefix(head): value for name, value in weights.items() if name.startswith(head)}
