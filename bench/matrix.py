"""The losslessness matrix on a real model: features x situations x drafters, all compared with drafting off, alone.

    python bench/matrix.py --prompts dev.jsonl --drafter FOLDER --out matrix.jsonl

A batch holds 24 requests, three of each feature. One line of JSON for each feature, situation, drafter and mode goes to
`--out`; what is there already is not run again, so an interrupted run goes on where it stopped. Exit status 1 when any
output differed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from draftproof import LLM
from draftproof.models.drafters import load_drafter, write_random_checkpoint
from draftproof.models.drafters.base import Drafter
from prompts import read_prompts
from support.engines import outcome
from support.matrix import FEATURES, Matrix, make_asks

DRAFTERS = ("dflash", "ngram", "random")
MODES = ("fixed=7", "auto")
CONTEXT = 512
Row = dict[str, object]
Run = tuple[str, str, str]
"""Situation, drafter, mode."""


def make_matrix(options: argparse.Namespace, random_folder: Path) -> Matrix:
    off = LLM(options.model, dtype=options.dtype, max_model_len=CONTEXT)
    info = off.target.info
    write_random_checkpoint(
        random_folder,
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        num_target_layers=info.num_layers,
        num_layers=1,
    )
    drafters: dict[str, Callable[[], Drafter]] = {
        "dflash": lambda: load_drafter(options.drafter, info, 8),
        "ngram": lambda: load_drafter("ngram", info, 8),
        "random": lambda: load_drafter(str(random_folder), info, 8),
    }
    rounds, count = 3, len(FEATURES)
    listed = read_prompts(options.prompts, 12)
    chosen = listed[:: max(1, len(listed) // (rounds * count))][: rounds * count]
    prompts = [_tokens(off, prompt.messages) for prompt in chosen]
    most = options.tokens
    return Matrix(off, make_asks(prompts, (most, most, most // 2)), drafters, few_blocks=24)


def _tokens(off: LLM, messages: list[dict[str, str]]) -> tuple[int, ...]:
    text = off.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tuple(off.tokenizer(text, add_special_tokens=False)["input_ids"])[:300]


def runs(options: argparse.Namespace) -> list[Run]:
    return [(s, d, m) for s in options.situations for d in options.drafters for m in options.modes]


def carry_out(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = (
        [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    )
    done = {(row["situation"], row["drafter"], row["mode"]) for row in rows}
    todo = [run for run in runs(options) if run not in done]
    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as progress:
        if not todo:
            return rows
        matrix = make_matrix(options, Path(folder))
        for run in progress.track(todo, description="runs"):
            new = compare(matrix, run)
            rows += new
            with options.out.open("a") as out:  # all of a run's lines or none
                out.write("".join(json.dumps(row) + "\n" for row in new))
    return rows


def compare(matrix: Matrix, run: Run) -> list[Row]:
    """One line a feature."""
    situation, drafter, mode = run
    results = matrix.run(situation, drafter, mode)
    rows: list[Row] = []
    for feature in FEATURES:
        pairs = list(matrix.of(feature, results))
        choices = [choice for result, _ in pairs for choice in result.choices]
        rows.append(
            {
                "situation": situation,
                "drafter": drafter,
                "mode": mode,
                "feature": feature,
                "outputs": len(choices),
                "tokens": sum(len(choice.token_ids) for choice in choices),
                "drafted": sum(choice.stats.drafted_tokens for choice in choices),
                "accepted": sum(choice.stats.accepted_tokens for choice in choices),
                "preemptions": sum(choice.stats.preemptions for choice in choices),
                "differing": sum(outcome(result) != outcome(reference) for result, reference in pairs),
            }
        )
    return rows


def show(rows: list[Row]) -> None:
    table = Table("situation", "drafter", "mode", *FEATURES, "accepted", title="requests that differ")
    groups: dict[tuple[object, ...], dict[object, Row]] = {}
    for row in rows:
        groups.setdefault((row["situation"], row["drafter"], row["mode"]), {})[row["feature"]] = row
    for key, by_feature in groups.items():
        drafted = sum(int(str(row["drafted"])) for row in by_feature.values())
        accepted = sum(int(str(row["accepted"])) for row in by_feature.values())
        cells = [str(by_feature[name]["differing"]) for name in FEATURES]
        table.add_row(*map(str, key), *cells, f"{accepted} of {drafted}")
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", required=True, help="folder of a DFlash checkpoint")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=64, help="most output tokens of a request")
    situations = ["alone", "batch of 24", "prefix hit", "preempted", "chunk 16"]
    parser.add_argument("--situations", nargs="+", default=situations, choices=situations)
    parser.add_argument("--drafters", nargs="+", default=list(DRAFTERS), choices=DRAFTERS)
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--out", type=Path, default=Path("matrix.jsonl"))
    options = parser.parse_args()
    rows = carry_out(options)
    show(rows)
    differing = sum(int(str(row["differing"])) for row in rows)
    outputs = sum(int(str(row["outputs"])) for row in rows)
    print(f"{outputs} outputs compared, {differing} requests differ")
    raise SystemExit(1 if differing else 0)


if __name__ == "__main__":
    main()
