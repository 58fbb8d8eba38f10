"""Seconds of a drafter's training step, and where they go.

python bench/train_step.py --responses responses.jsonl --steps 20 --profile
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from draftproof import LLM
from draftproof.models.rows import Segment
from draftproof.train.blocks import BlockBatch, make_batch
from draftproof.train.features import Sample
from draftproof.train.initial import initial_tensors
from draftproof.train.layout import DrafterShape, shape_for
from draftproof.train.loss import LossSettings, ReducedVocabulary, block_loss, occurring_ids
from draftproof.train.model import TrainableDrafter
from draftproof.train.optimizers import OptimizerSettings, build_optimizer
from draftproof.train.precision import PRECISIONS, autocast
from draftproof.train.target_weights import TargetWeights, read_target_weights

STAGES = ("batch", "forward", "loss", "backward", "optimiser")


def tap(llm: LLM, lines: list[str], taps: tuple[int, ...]) -> list[Sample]:
    """The target's features along responses."""
    target, samples = llm.target, []
    for line in lines:
        entry = json.loads(line)
        ids = torch.tensor(entry["prompt_ids"] + entry["output_ids"])
        out = target.forward([Segment(target.new_sequence(), ids, len(ids))], taps)
        assert out.features is not None
        samples.append(Sample(ids, len(entry["prompt_ids"]), out.features.to(torch.bfloat16).clone()))
    return samples


class Trainer:
    """One drafter and what a step needs."""

    def __init__(
        self, options: argparse.Namespace, target: TargetWeights, shape: DrafterShape, samples: list[Sample]
    ) -> None:
        self.options, self.shape, self.samples = options, shape, samples
        self.model = TrainableDrafter(shape.config(), target.embedding, target.lm_head)
        self.model.load_published(initial_tensors(shape, target, samples[:8], options.seed))
        kinds = OptimizerSettings(kind=options.optimizer, learning_rate=options.rate)
        self.optimizer = build_optimizer(self.model, kinds)
        outputs = [sample.token_ids[sample.response_start :].tolist() for sample in samples]
        count = options.vocabulary
        ids = occurring_ids(outputs)
        # A few responses hold fewer tokens than a whole data set: others fill up to the size asked for.
        ids += [token for token in range(target.vocab_size) if token not in set(ids)][
            : max(count - len(ids), 0)
        ]
        self.vocabulary = ReducedVocabulary(ids, target.vocab_size) if count else None
        self.generator = torch.Generator().manual_seed(options.seed)
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def batch(self) -> BlockBatch:
        chosen = torch.randperm(len(self.samples), generator=self.generator)[: self.options.sequences]
        return make_batch(
            [self.samples[int(index)] for index in chosen],
            self.options.anchors,
            self.shape.block_size,
            self.shape.mask_token_id,
            self.generator,
        )

    def step(self) -> tuple[float, float]:
        """One step; its loss and training acceptance."""
        settings = LossSettings(distillation=0.0)
        marks = [time.perf_counter()]
        batch = self.batch()
        marks.append(time.perf_counter())
        with autocast(torch.device("cpu"), self.options.precision):
            hidden = self.model(batch)
        marks.append(time.perf_counter())
        out = block_loss(self.model, hidden, batch, settings, self.vocabulary)
        marks.append(time.perf_counter())
        out.loss.backward()
        marks.append(time.perf_counter())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        marks.append(time.perf_counter())
        for stage, first, last in zip(STAGES, marks, marks[1:], strict=False):
            self.seconds[stage].append(last - first)
        return float(out.loss.detach()), out.metrics.acceptance_length


def report(trainer: Trainer, console: Console) -> None:
    """Median and least seconds of every stage."""
    skipped = 2  # the first steps pack and allocate
    table = Table("stage", "median ms", "least ms")
    rows = {stage: trainer.seconds[stage][skipped:] for stage in STAGES}
    whole = [sum(parts) for parts in zip(*rows.values(), strict=True)]
    for stage, seconds in {**rows, "step": whole}.items():
        table.add_row(stage, f"{1e3 * statistics.median(seconds):.1f}", f"{1e3 * min(seconds):.1f}")
    console.print(table)
    blocks = trainer.options.sequences * trainer.options.anchors
    tokens = blocks * (trainer.shape.block_size - 1)
    context = trainer.options.sequences * statistics.mean(len(s.token_ids) for s in trainer.samples)
    middle = statistics.median(whole)
    console.print(
        f"{middle:.3f} s a step: {tokens / middle:,.0f} label tokens/s, {context / middle:,.0f} context tokens/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--responses", type=Path, required=True, help="JSON Lines with prompt_ids and output_ids"
    )
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--count", type=int, default=32, help="responses to take")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--anchors", type=int, default=32)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=10424, help="of the loss's softmax; 0 for all")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--precision", choices=PRECISIONS, default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="list the costliest operators")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console()
    target = read_target_weights(options.target, options.layers)
    shape = shape_for(target, num_layers=options.layers, block_size=options.block_size, mask_token_id=5)
    lines = options.responses.read_text(encoding="utf-8").splitlines()[: options.count]
    trainer = Trainer(options, target, shape, tap(LLM(options.target), lines, shape.taps))
    for _ in range(options.steps):
        loss, length = trainer.step()
    report(trainer, console)
    console.print(f"after {options.steps} steps: loss {loss:.3f}, training acceptance {length:.2f}")
    if options.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(4):
                trainer.step()
        console.print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30))


if __name__ == "__main__":
    main()
