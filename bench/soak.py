"""A soak: random requests in random engines with small pools, aborted at random; every answer is compared with its solo run.

    python bench/soak.py --requests 2000
    python bench/soak.py --model smollm2-135m --drafter FOLDER --requests 100

Without `--model` on a tiny random model. Exit status 1 when an output was wrong or a block leaked.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from draftproof import LLM
from draftproof.models.drafters import load_drafter, write_random_checkpoint
from draftproof.models.drafters.base import Drafter
from support.engines import WitnessDrafter, short_llm, tiny_drafter
from support.soaking import Asks, Soak, SoakReport
from support.tiny_tokenizers import TEXT

Makers = list[Callable[[], Drafter | None]]


def tiny(kind: str, dtype: str) -> tuple[LLM, Makers]:
    off = short_llm(256, kind, {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype])
    return off, [
        lambda: None,
        lambda: tiny_drafter("dflash", off),
        lambda: tiny_drafter("dflash2", off),
        lambda: tiny_drafter("ngram", off),
        WitnessDrafter,
        WitnessDrafter,
        lambda: WitnessDrafter(period=0),
    ]


def real(model: str, drafter: str | None, folder: Path, longest: int) -> tuple[LLM, Makers]:
    off = LLM(model, max_model_len=longest)
    info = off.target.info
    write_random_checkpoint(
        folder,
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        num_target_layers=info.num_layers,
        num_layers=1,
    )
    makers: Makers = [
        lambda: load_drafter("ngram", info, 8),
        lambda: load_drafter(str(folder), info, 8),
        WitnessDrafter,
    ]
    if drafter is not None:
        makers += [lambda: load_drafter(drafter, info, 8)] * 2
    return off, makers


def soak(options: argparse.Namespace, folder: Path) -> SoakReport:
    rng = random.Random(options.seed)
    if options.model is None:
        longest, blocks, distinct, most_output = 256, [4, 5, 6, 8, 12, 64], 160, 64
        off, makers = tiny(options.kind, options.dtype)
    else:
        longest, blocks, distinct, most_output = 256, [4, 6, 12], 30, 40
        off, makers = real(options.model, options.drafter, folder, longest)
    asks = Asks(off, TEXT, rng, distinct, longest, most_output)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("requests", total=options.requests)

        def show(report: SoakReport) -> None:
            found = len(report.wrong) + len(report.leaks)
            bar.update(task, completed=report.requests, description=f"requests ({found} faults)")

        return Soak(off, asks, makers, rng, blocks, options.aborts).run(options.requests, show)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--model", help="a real model; a tiny random one when not given")
    parser.add_argument("--drafter", help="folder of a DFlash checkpoint for the real model")
    parser.add_argument(
        "--kind", default="llama", help="architecture of the tiny model: gemma3, gpt2, olmoe ..."
    )
    parser.add_argument("--dtype", default="float32", help="of the tiny model")
    parser.add_argument("--aborts", type=float, default=0.2, help="share of the requests to abort")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the summary here")
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = soak(options, Path(folder))
    summary = {**asdict(report), "seconds": round(time.perf_counter() - started, 1), "seed": options.seed}
    if options.json is not None:
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    for name, value in summary.items():
        print(f"{name:18} {value if not isinstance(value, list) else len(value)}")
    for fault in [*report.wrong, *report.leaks][:10]:
        print(f"FAULT {fault}")
    raise SystemExit(1 if report.wrong or report.leaks else 0)


if __name__ == "__main__":
    main()
