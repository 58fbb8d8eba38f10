"""What a run will cost, measured before it starts: a short generation, one pass for features, a few steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.engine import LLM
from draftproof.engine.prompt_files import FilePrompt
from draftproof.sampling import SamplingParams
from draftproof.train.blocks import make_batch
from draftproof.train.checkpoints import Progress, newest_progress
from draftproof.train.evaluate import answers, first_of_each_group
from draftproof.train.features import Features, open_features
from draftproof.train.folder import RunFolder
from draftproof.train.loop import on_cpu
from draftproof.train.loss import LossSettings, occurring_ids
from draftproof.train.loss_pass import LossPass
from draftproof.train.optimizers import OptimizerSettings, build_optimizer
from draftproof.train.precision import autocast
from draftproof.train.responses import Response, read_responses
from draftproof.train.settings import TrainSettings
from draftproof.train.trainee import make_trainee

TRIED_PROMPTS, TRIED_TOKENS = 32, 24
"""Of the short generation."""
TRIED_STEPS = 3
_GUESSED_VOCABULARY = 10_000
"""Tokens that answers hold, where none is known."""
_GUESSED_SHARE = 0.7
"""How much of the longest answer the mean one takes, where no answer is known."""


@dataclass(frozen=True)
class StageCost:
    """What one stage will take, from where the run stands.

    Attributes:
        stage: its name.
        amount: of what, in words.
        seconds: about.
        disk: bytes, about.
    """

    stage: str
    amount: str
    seconds: float
    disk: int = 0


@dataclass(frozen=True)
class Estimate:
    """What a run will take, by stage; `passes` is how often the data will be gone through."""

    stages: tuple[StageCost, ...]
    passes: float

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def disk(self) -> int:
        return sum(stage.disk for stage in self.stages)


@dataclass(frozen=True)
class EstimateInput:
    """What is known of a run before it starts.

    Attributes:
        llm: the target.
        target: as the user named it.
        prompts, held_out: of the run.
        taps: of the drafter.
        given: answers that exist outside of the run's folder.
        folder: of the run, with what earlier calls have done.
        processes: that train.
    """

    llm: LLM
    target: str
    prompts: Sequence[FilePrompt]
    held_out: Sequence[FilePrompt]
    taps: tuple[int, ...]
    given: Sequence[Response]
    folder: RunFolder
    processes: int = 1


@dataclass(frozen=True)
class _Speeds:
    """Measured on this machine.

    Attributes:
        generate: tokens a second, many answers at once.
        features: tokens a second.
        step: seconds an optimizer step.
        row_bytes: of a token's features.
    """

    generate: float
    features: float
    step: float
    row_bytes: int


def estimate(known: EstimateInput, settings: TrainSettings) -> Estimate:
    """Measure for some seconds and multiply."""
    mine = _answered(known.folder)
    lengths = [len(one.output_ids) for one in (*mine, *known.given)]
    length = _mean(lengths) or settings.max_tokens * _GUESSED_SHARE
    speeds, prompt_length = _measure(known, settings, round(length))
    to_answer, answers_then = _answering(known, settings, mine, length, prompt_length)
    sequences = answers_then + len(known.given)
    rows = sequences * (length + prompt_length)
    kept = min(rows, settings.cache_gib * 2**30 / speeds.row_bytes)
    done = newest_progress(known.folder.checkpoints) or Progress()
    training = _training(settings, speeds.step, done)
    stages = (
        StageCost("answers", f"{to_answer:,.0f} tokens", to_answer / speeds.generate),
        StageCost(
            "features",
            f"{rows:,.0f} tokens{'' if kept >= rows else ', a part of them kept'}",
            0.0 if done.step else kept / speeds.features,
            round(kept * speeds.row_bytes),
        ),
        training,
        _measuring(known, settings, speeds),
    )
    return Estimate(stages, (done.step + training.seconds / speeds.step) * settings.batch / max(sequences, 1))


def _answering(
    known: EstimateInput,
    settings: TrainSettings,
    mine: Sequence[Response],
    length: float,
    prompt_length: float,
) -> tuple[float, int]:
    """Tokens that the target has still to write, and how many answers of its own there will be in the end."""
    if known.folder.data.exists():  # what is written once the answers are complete
        return 0.0, len(mine)
    questions = len(known.prompts) * settings.answers_per_prompt + settings.own_prompts
    total = questions * length
    if settings.response_tokens is not None:
        total = min(total, settings.response_tokens)
    left = total - sum(len(one.output_ids) for one in mine)
    made_up = settings.own_prompts * prompt_length
    return max(0.0, left) + (made_up if left > 0 else 0.0), round(total / length)


def _training(settings: TrainSettings, step: float, done: Progress) -> StageCost:
    seconds, said = float("inf"), ""
    if settings.steps is not None:
        left = max(0, settings.steps - done.step)
        seconds, said = left * step, f"{left:,} steps of {step:.2f} s"
    if settings.time_limit is not None and settings.time_limit * 60 - done.seconds < seconds:
        seconds = max(0.0, settings.time_limit * 60 - done.seconds)
        said = f"about {seconds / step:,.0f} steps of {step:.2f} s"
    return StageCost("training", said, seconds)


def _measuring(known: EstimateInput, settings: TrainSettings, speeds: _Speeds) -> StageCost:
    """The last one. Those in between are few prompts each, and belong to the training's own time limit."""
    tokens = len(known.held_out) * settings.final_tokens
    return StageCost(
        "measuring",
        f"{len(known.held_out)} held-out prompts, {tokens:,} tokens at most",
        tokens / speeds.generate,
    )


def _measure(known: EstimateInput, settings: TrainSettings, length: int) -> tuple[_Speeds, float]:
    """Speeds, and the mean length of a prompt in tokens."""
    tried = (list(known.prompts) or first_of_each_group(known.held_out, TRIED_PROMPTS))[:TRIED_PROMPTS]
    params = SamplingParams(temperature=0.0, max_tokens=min(TRIED_TOKENS, settings.max_tokens))
    began = time.perf_counter()
    results = answers(known.llm, tried, params)
    generate = sum(len(result.token_ids) for result in results) / (time.perf_counter() - began)
    prompt_length = _mean([len(result.prompt_token_ids) for result in results])
    made_up = _made_up_responses(
        [tuple(result.prompt_token_ids) for result in results], length, settings, _occurring(known)
    )
    top_k = settings.distill_top_k if settings.distill > 0 else 0
    source = open_features(known.llm.target, made_up, known.taps, max_bytes=2**30, top_k=top_k)
    began = time.perf_counter()
    samples = source.batch(range(len(source)))
    rows = sum(len(sample.token_ids) for sample in samples)
    features = rows / (time.perf_counter() - began)
    row_bytes = samples[0].features.shape[1] * samples[0].features.element_size()
    step = _step_seconds(known, settings, source) / known.processes
    return _Speeds(generate, features, step, row_bytes), prompt_length


def _made_up_responses(
    prompts: Sequence[tuple[int, ...]], length: int, settings: TrainSettings, vocabulary: Sequence[int]
) -> list[Response]:
    """As many as a pass takes, of the length that is expected; what they say does not matter."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(settings.micro_batch):
        prompt = prompts[number % len(prompts)][: settings.max_length - 2]
        size = max(2, min(length, settings.max_length - len(prompt)))
        drawn = torch.randint(0, len(vocabulary), (size,), generator=generator).tolist()
        made.append(Response(prompt, tuple(vocabulary[place] for place in drawn)))
    return made


def _step_seconds(known: EstimateInput, settings: TrainSettings, source: Features) -> float:
    """Of an optimizer step on one process: the fastest of a few, with a drafter that is thrown away."""
    device = known.llm.target.device
    samples = [on_cpu(sample) for sample in source.batch(range(len(source)))]
    trainee = make_trainee(
        known.target, settings, known.taps, 0, dict.fromkeys(_occurring(known), 1), samples
    )
    model = LossPass(trainee.drafter, LossSettings(settings.gamma, settings.distill), trainee.vocabulary).to(
        device
    )
    optimizer = build_optimizer(model, OptimizerSettings("muon" if settings.optimizer == "muon" else "adamw"))
    batch = make_batch(samples, settings.anchors, settings.block_size, 0).to(device)
    passes, updates = [], []
    for _ in range(TRIED_STEPS):
        began = time.perf_counter()
        with autocast(device, settings.precision):
            loss, _sums = model(batch)
        loss.backward()
        _synchronise(device)
        passed = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _synchronise(device)
        passes.append(passed - began)
        updates.append(time.perf_counter() - passed)
    return min(passes) * (settings.batch // settings.micro_batch) + min(updates)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _answered(folder: RunFolder) -> list[Response]:
    return read_responses(folder.responses) if _has_answers(folder) else []


def _occurring(known: EstimateInput) -> list[int]:
    """Tokens that answers hold: of those there are, else as many as usual."""
    there = [*_answered(known.folder), *known.given]
    if there:
        return occurring_ids([one.output_ids for one in there])
    return list(range(min(_GUESSED_VOCABULARY, known.llm.target.info.vocab_size)))


def _has_answers(folder: RunFolder) -> bool:
    return folder.responses.exists() and b'"output_ids"' in folder.responses.read_bytes()[:100_000]


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
