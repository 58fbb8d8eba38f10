"""A whole run: the target answers, features are taken, the drafter is trained, measured, and written.

Every stage goes on where it was. What is done lies in the run's folder, and each stage looks there first: answers in their
file, features in their shards, training in its checkpoints, the best drafter so far beside the figures that made it the best.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from draftproof import __version__
from draftproof.engine import LLM
from draftproof.errors import RequestError
from draftproof.models.executor import precision_of
from draftproof.train.best import Best, Measuring, final_figures
from draftproof.train.card import CardFacts, card
from draftproof.train.checkpoints import Checkpoints, Progress
from draftproof.train.estimate import EstimateInput, estimate
from draftproof.train.evaluate import Evaluation
from draftproof.train.features import Features, open_features
from draftproof.train.folder import RunFolder, insist_same
from draftproof.train.interrupts import Interrupts, watching_signals
from draftproof.train.layout import check_shape, even_taps, write_drafter
from draftproof.train.loop import Loop, LoopParts, on_cpu, passes_a_step
from draftproof.train.loss import LossSettings
from draftproof.train.loss_pass import LossPass
from draftproof.train.mask_token import choose_mask_token
from draftproof.train.optimizers import OptimizerSettings, build_optimizer
from draftproof.train.precision import precision_on
from draftproof.train.record import Record, draw
from draftproof.train.regenerate import about_of, regenerate
from draftproof.train.responses import Response
from draftproof.train.run_data import (
    answers_to_learn_from,
    data_facts,
    digest_of_prompts,
    digest_of_responses,
    plan_of,
    read_data,
)
from draftproof.train.settings import TrainSettings
from draftproof.train.start import card_before, insist_continues
from draftproof.train.trainee import SAMPLES, Trainee, make_trainee
from draftproof.train.watch import Watch

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class TrainJob:
    """What is trained from what, and where to.

    Attributes:
        target: the model, as `LLM` takes it.
        out: folder of the drafter in the end; the run's own folder stands beside it, ``OUT.training``.
        held_out: prompts to measure with.
        prompts: files of prompts for the target to answer.
        responses: files of answers that the target has given already.
        dtype, device, trust_remote_code: of the target, as for `LLM`.
        drop_leaks: leave out prompts that are held out, instead of refusing them.
        restart: forget what the run's folder holds, but for the target's answers.
        start_from: a drafter's folder, whose weights the training starts from.
        measure: estimate the cost first.
        only_measure: and end with that.
    """

    target: str
    out: Path
    held_out: Path
    prompts: tuple[Path, ...] = ()
    responses: tuple[Path, ...] = ()
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    drop_leaks: bool = False
    restart: bool = False
    start_from: Path | None = None
    measure: bool = True
    only_measure: bool = False


@dataclass(frozen=True)
class TrainReport:
    """How a run ended.

    Attributes:
        finished: whether it came to its end; otherwise the same command goes on.
        out: the drafter's folder, once finished.
        final: its figures on all held-out prompts, once finished.
        folder: of the run.
        progress: how far it came.
    """

    finished: bool
    out: Path
    final: Evaluation | None
    folder: Path
    progress: Progress


def train(job: TrainJob, settings: TrainSettings, watch: Watch | None = None) -> TrainReport:
    """Train a drafter, or go on where an earlier call was stopped.

    Under `accelerate launch` or `torchrun` every process calls this; the first one answers prompts, evaluates and writes.

    Raises:
        RequestError: DP500 to DP507, the data; DP516, DP517, DP520, the settings; DP521, the folder holds another run; DP522, it
            is in use; DP523, it is damaged; DP524, there is nothing to learn from; DP525, the loss is no number any more; DP526,
            a file cannot be written; DP527, Muon under FSDP.
        ModelError: the target cannot be loaded (DP2xx) or lent from (DP510).
        DrafterError: DP511, the drafter does not fit the target; DP514, `out` holds something else.
        KeyboardInterrupt: outside of training, where a signal ends the run at once.
    """
    settings = settings.checked()
    accelerator = _accelerator(job)
    settings = replace(settings, precision=precision_on(accelerator.device, settings.precision))
    folder = RunFolder.beside(job.out)
    main = accelerator.is_main_process
    with folder.locked() if main else nullcontext(), watching_signals() as interrupts:
        if job.restart and main:
            folder.empty()
        accelerator.wait_for_everyone()
        run = _Run(
            job, settings, folder, accelerator, interrupts, watch if watch is not None and main else Watch()
        )
        return run.all()


class _Run:
    def __init__(
        self,
        job: TrainJob,
        settings: TrainSettings,
        folder: RunFolder,
        accelerator: Accelerator,
        interrupts: Interrupts,
        watch: Watch,
    ) -> None:
        self.job, self.settings, self.folder = job, settings, folder
        self.accelerator, self.interrupts, self.watch = accelerator, interrupts, watch
        self.main = accelerator.is_main_process

    def all(self) -> TrainReport:
        """The stages, one after the other."""
        passes_a_step(self.settings, self.accelerator.num_processes)
        self._load_target()
        self._check_shape()
        self._read_data()
        if self.main:
            insist_same(self.folder.run, self._identity())
        if self.job.measure and self.main:
            self.watch.estimate(estimate(self._known(), self.settings))
        if self.job.only_measure:
            return TrainReport(False, self.job.out, None, self.folder.path, Progress())
        responses = self._answers()
        source = self._features(responses)
        trainee = self._trainee(responses, source)
        finished, progress = self._train(trainee, source)
        if not finished:
            return TrainReport(False, self.job.out, None, self.folder.path, progress)
        final = self._finish(trainee, responses, progress) if self.main else None
        self.accelerator.wait_for_everyone()
        return TrainReport(True, self.job.out, final, self.folder.path, progress)

    # Target and prompts

    def _load_target(self) -> None:
        job = self.job
        self.llm = LLM(
            job.target,
            dtype=job.dtype,
            device=job.device,
            draft_mode="off",
            trust_remote_code=job.trust_remote_code,
        )
        self.taps = self.settings.taps or even_taps(self.llm.target.info.num_layers, self.settings.num_taps)

    def _check_shape(self) -> None:
        """What can be known to be wrong before the target answers, and before the folder is this run's."""
        info, settings = self.llm.target.info, self.settings
        check_shape(
            info.name,
            info.num_layers,
            info.vocab_size,
            num_layers=settings.num_layers,
            block_size=settings.block_size,
            taps=self.taps,
            mask_token_id=settings.mask_token_id,
        )
        if self.job.start_from is not None:
            known: dict[str, Any] = {"num_layers": settings.num_layers, "target_layer_ids": self.taps}
            if settings.mask_token_id is not None:
                known["mask_token_id"] = settings.mask_token_id
            insist_continues(self.job.start_from, known)

    def _read_data(self) -> None:
        job = self.job
        self.data = read_data(self.llm, job.prompts, job.responses, job.held_out, drop_leaks=job.drop_leaks)
        self.asks = bool(self.data.prompts or self.settings.own_prompts)
        if not self.asks and not self.data.given:
            raise RequestError(
                "DP524", "no prompts, no answers, and none that the target makes up: nothing to learn from"
            )
        self.measuring = Measuring(self.llm, self.data.held_out, self.settings, self.interrupts, self.watch)

    def _identity(self) -> dict[str, Any]:
        """What makes the run in this folder this run."""
        return {
            "target": about_of(self.llm, plan_of(self.settings)).checksum,
            "target_precision": precision_of(self.llm.target),
            "prompts": digest_of_prompts(self.data.prompts),
            "held_out": digest_of_prompts(self.data.held_out),
            "start_from": None if self.job.start_from is None else self.job.start_from.name,
            **self.settings.recipe(),
        }

    def _known(self) -> EstimateInput:
        return EstimateInput(
            self.llm,
            self.job.target,
            self.data.prompts,
            self.data.held_out,
            self.taps,
            self.data.given,
            self.folder,
            self.accelerator.num_processes,
        )

    # Answers and features

    def _answers(self) -> list[Response]:
        """The target's answers, on every process the same."""
        if self.main and self.asks:
            summary = regenerate(
                self.llm,
                self.data.prompts,
                plan_of(self.settings),
                self.folder.responses,
                self.watch.stage,
                held_out=self.data.kept_out,
                stop=lambda: self.interrupts.asked,
            )
            self.interrupts.check()
            self.watch.say(
                f"{summary.answers} answers of the target, {summary.response_tokens:,} tokens "
                f"({summary.found} were there already)"
            )
        self.accelerator.wait_for_everyone()
        responses = answers_to_learn_from(self.llm, self.data, self.settings, self.folder.responses)
        if self.main:
            insist_same(
                self.folder.data, {"responses": len(responses), "digest": digest_of_responses(responses)}
            )
        return responses

    def _features(self, responses: list[Response]) -> Features:
        """The first process fills the cache, then the others read it."""
        source = self._open_features(responses) if self.main else None
        self.interrupts.check()
        self.accelerator.wait_for_everyone()
        return source if source is not None else self._open_features(responses)

    def _open_features(self, responses: list[Response]) -> Features:
        settings = self.settings
        return open_features(
            self.llm.target,
            responses,
            self.taps,
            folder=self.folder.features,
            max_bytes=int(settings.cache_gib * 2**30),
            top_k=settings.distill_top_k if settings.distill > 0 else 0,
            progress=self.watch.stage,
            stop=lambda: self.interrupts.asked,
            fill=self.main,
        )

    # Training

    def _trainee(self, responses: list[Response], source: Features) -> Trainee:
        used = {token for one in responses for token in (*one.prompt_ids, *one.output_ids)}
        mask = self.settings.mask_token_id
        if mask is None:
            mask = choose_mask_token(self.llm.tokenizer, self.llm.target.info.vocab_size, used)
        return make_trainee(
            self.job.target,
            self.settings,
            self.taps,
            mask,
            Counter(token for one in responses for token in one.output_ids),
            [on_cpu(sample) for sample in source.batch(range(min(SAMPLES, len(source))))],
            self.job.start_from,
        )

    def _train(self, trainee: Trainee, source: Features) -> tuple[bool, Progress]:
        accelerator, settings = self.accelerator, self.settings
        if settings.optimizer == "muon" and _is_sharded(accelerator):
            raise RequestError("DP527", "optimizer 'muon' needs whole matrices, and FSDP has them in slices")
        model = LossPass(trainee.drafter, LossSettings(settings.gamma, settings.distill), trainee.vocabulary)
        moved = OptimizerSettings(
            kind="muon" if settings.optimizer == "muon" else "adamw",
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        prepared, optimizer = accelerator.prepare(model, build_optimizer(model, moved))
        checkpoints = Checkpoints(self.folder.checkpoints, accelerator)
        progress = checkpoints.load() or Progress()
        if progress.step:
            self.watch.say(f"going on after step {progress.step}")
        record = Record(self.folder.path, progress.step) if self.main else None
        best = Best(self.folder, trainee.shape, self.measuring, record, trainee.files)
        parts = LoopParts(
            model=prepared,
            optimizer=optimizer,
            source=source,
            mask_token_id=trainee.shape.mask_token_id,
            accelerator=accelerator,
            checkpoints=checkpoints,
            record=record,
            evaluate=best.take,
            watch=self.watch.step,
            interrupts=self.interrupts,
        )
        try:
            finished = Loop(parts, settings, progress).run()
        finally:
            if record is not None:
                record.close()
        return finished, progress

    # The end

    def _finish(self, trainee: Trainee, responses: list[Response], progress: Progress) -> Evaluation:
        """Measure the best drafter on all held-out prompts and write it, with its card, to where it was wanted."""
        path, final = final_figures(self.folder, self.measuring, trainee.files)
        if draw(self.folder.path, self.folder.plot):
            self.watch.say(f"plot: {self.folder.plot}")
        text = card(self._facts(trainee, responses, progress, final))
        write_drafter(
            self.job.out,
            trainee.shape,
            load_file(path / "model.safetensors"),
            files={**trainee.files, "README.md": text},
        )
        return final

    def _facts(
        self, trainee: Trainee, responses: list[Response], progress: Progress, final: Evaluation
    ) -> CardFacts:
        mask = trainee.shape.mask_token_id
        target, start = Path(self.job.target), self.job.start_from
        return CardFacts(
            target=target.name if target.exists() else self.job.target,
            precision=precision_of(self.llm.target),
            taps=self.taps,
            mask_token=(mask, self.llm.tokenizer.decode([mask])),
            parameters=sum(parameter.numel() for parameter in trainee.drafter.parameters()),
            data=data_facts(self.data, responses),
            recipe=self.settings.recipe(),
            step=final.step,
            last_step=progress.step,
            last_minutes=progress.seconds / 60,
            processes=self.accelerator.num_processes,
            final=final,
            version=__version__,
            before=None if start is None else (start.name, card_before(start)),
        )


def _accelerator(job: TrainJob) -> Accelerator:
    """One for this process; whatever `accelerate launch` says is in force. Processes wait for the first one's stages."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    on_cpu = job.device == "cpu" or not torch.cuda.is_available()
    return Accelerator(cpu=on_cpu, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(days=7))])


def _is_sharded(accelerator: Accelerator) -> bool:
    from accelerate.utils import DistributedType

    return bool(accelerator.distributed_type == DistributedType.FSDP)
