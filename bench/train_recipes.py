"""Acceptance against training time, for the choices of a recipe: each is changed alone.

python bench/train_recipes.py --responses run.training/responses.jsonl --held-out dev.jsonl --out recipes --steps 300

What is there already is not run again, so a comparison may be interrupted and go on. Seconds are the median step's times the
number of steps: on a busy machine they are too many, but alike for all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

RECIPES: dict[str, list[str]] = {
    "as it comes": [],
    "random start": ["--random-start"],
    "Muon": ["--optimizer", "muon"],
    "Muon, rate doubled": ["--optimizer", "muon", "--learning-rate", "2e-3"],
    "AdamW, rate doubled": ["--learning-rate", "2e-3"],
    "half distilled": ["--distill", "0.5"],
    "2 layers": ["--layers", "2"],
    "4 layers": ["--layers", "4"],
    "blocks of 4": ["--block-size", "4"],
    "blocks of 12": ["--block-size", "12"],
    "gamma 4": ["--gamma", "4"],
    "16 anchors": ["--anchors", "16"],
    "64 anchors": ["--anchors", "64"],
    "64 anchors, 2 sequences": ["--anchors", "64", "--batch", "2", "--micro-batch", "2"],
}
LAST = 50
"""Steps over which acceptance during training is averaged."""


@dataclass(frozen=True)
class Outcome:
    """One recipe's run.

    Attributes:
        name: of the recipe.
        step_s: seconds a step, median.
        curve: (seconds of training, acceptance length along the answers of the batch), running means.
        held_out: acceptance length by group, held-out prompts decoded.
    """

    name: str
    step_s: float
    curve: list[tuple[float, float]]
    held_out: dict[str, float]

    @property
    def accepted(self) -> float:
        return self.curve[-1][1]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.held_out.values())


def outcome_of(name: str, run: Path) -> Outcome:
    """Read what a finished run left."""
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text("utf-8").splitlines()]
    clock = [0.0, *(step["seconds"] for step in steps)]
    step_s = statistics.median(after - before for before, after in pairwise(clock))
    accepted = [step["accepted"] for step in steps]
    curve = [
        (end * step_s, statistics.fmean(accepted[max(0, end - LAST) : end]))
        for end in range(10, len(steps) + 1, 10)
    ]
    final = json.loads((run / "final.json").read_text("utf-8"))
    groups = {group["group"]: group["acceptance_length"] for group in final["groups"]}
    return Outcome(name, step_s, curve, groups)


def run_recipe(options: argparse.Namespace, name: str, extra: list[str]) -> Outcome:
    """Train by one recipe, unless that has been done, and read the outcome."""
    out = options.out / name.replace(" ", "-").replace(",", "")
    run = out.with_name(out.name + ".training")
    if not (run / "final.json").exists():
        command = [
            *(sys.executable, "-m", "draftproof.cli", "train", "--target", options.target),
            *("--responses", str(options.responses), "--held-out", str(options.held_out)),
            *("--out", str(out), "--steps", str(options.steps), "--eval-steps", str(10 * options.steps)),
            *("--no-estimate", *options.also.split(), *extra),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return outcome_of(name, run)


def table_of(outcomes: list[Outcome]) -> Table:
    """Recipes by what they reached."""
    table = Table()
    groups = list(outcomes[0].held_out)
    for column in ("recipe", "s a step", "accepted", *groups, "mean"):
        table.add_column(column)
    for one in outcomes:
        held = [f"{one.held_out[group]:.3f}" for group in groups]
        table.add_row(one.name, f"{one.step_s:.3f}", f"{one.accepted:.3f}", *held, f"{one.mean:.3f}")
    return table


def draw(outcomes: list[Outcome], path: Path) -> None:
    """Acceptance during training against seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6))
    for one in outcomes:
        axes.plot(*zip(*one.curve, strict=True), label=one.name)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("acceptance length along the answers")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--responses", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, a table and a plot")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="NAME")
    parser.add_argument("--also", default="", help="options for every run")
    options = parser.parse_args()
    console, outcomes = Console(), []
    for name in options.recipes:
        outcomes.append(run_recipe(options, name, RECIPES[name]))
        one = outcomes[-1]
        console.print(
            f"{name}: {one.step_s:.3f} s a step, accepted {one.accepted:.3f}, held out {one.mean:.3f}"
        )
    console.print(table_of(outcomes))
    draw(outcomes, options.out / "recipes.png")


if __name__ == "__main__":
    main()
