"""Acceptance length by prompt group, greedy or sampled, beside decoding without a drafter.

python bench/acceptance.py --prompts dev.jsonl --drafter FOLDER --per-group 6 --max-tokens 128
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from draftproof import LLM, RequestResult, SamplingParams
from prompts import read_prompts


@dataclass
class GroupFigures:
    """Sums over the prompts of a group."""

    prompts: int = 0
    identical: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds_on: float = 0.0
    tokens_off: int = 0
    seconds_off: float = 0.0
    by_position: list[int] = field(default_factory=list)

    @property
    def acceptance_length(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def speed_ratio(self) -> float:
        return (self.tokens / self.seconds_on) / (self.tokens_off / self.seconds_off)

    def add(self, on: RequestResult, off: RequestResult) -> None:
        self.prompts += 1
        self.identical += on.token_ids == off.token_ids
        self.tokens += on.stats.decode_tokens
        self.steps += on.stats.target_steps
        self.drafted += on.stats.drafted_tokens
        self.accepted += on.stats.accepted_tokens
        self.seconds_on += on.stats.seconds.decode
        self.tokens_off += off.stats.decode_tokens
        self.seconds_off += off.stats.seconds.decode
        for length in on.stats.accepted_lengths:
            self.by_position += [0] * (length - len(self.by_position))
            for position in range(length):
                self.by_position[position] += 1


def measure(options: argparse.Namespace) -> dict[str, GroupFigures]:
    on = LLM(
        options.model,
        options.drafter,
        dtype=options.dtype,
        block_size=options.block_size,
        draft_mode=options.draft_mode,
    )
    off = on.with_drafter(None)
    params = SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        max_tokens=options.max_tokens,
        ignore_eos=options.ignore_eos,
    )
    figures: dict[str, GroupFigures] = {}
    for prompt in track(
        read_prompts(options.prompts, options.per_group), "prompts", console=Console(stderr=True)
    ):
        with_drafter = on.chat(prompt.messages, params)[0]
        without = off.chat(prompt.messages, params)[0]
        figures.setdefault(prompt.group, GroupFigures()).add(with_drafter, without)
    return figures


def show(figures: dict[str, GroupFigures]) -> None:
    table = Table(
        "group", "prompts", "identical", "acceptance length", "accepted / drafted", "speed on / off"
    )
    for group, sums in figures.items():
        share = f"{sums.accepted} / {sums.drafted}"
        identical = f"{sums.identical} of {sums.prompts}"
        table.add_row(
            group,
            str(sums.prompts),
            identical,
            f"{sums.acceptance_length:.3f}",
            share,
            f"{sums.speed_ratio:.2f}",
        )
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--block-size", type=int, default=None)
    parser.add_argument("--draft-mode", default="fixed=99", help="auto, fixed=N; the whole block by default")
    parser.add_argument("--per-group", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ignore-eos", action="store_true")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here as well")
    options = parser.parse_args()
    figures = measure(options)
    show(figures)
    if options.json:
        rows = {g: {**vars(f), "acceptance_length": f.acceptance_length} for g, f in figures.items()}
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
