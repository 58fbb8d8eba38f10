"""Acceptance length of a drafter in an independent implementation (the package ``dflash``) and in draftproof, prompt by prompt.

Both decode the same prompts greedily with the same target weights in the same dtype and count the tokens that each decode
step commits. The package is not needed for anything else: ``pip install --no-deps dflash==0.1.0``.

python bench/independent.py --drafter FOLDER --prompts dev.jsonl --per-group 2 --max-tokens 64
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from draftproof import LLM, SamplingParams
from draftproof.models.registry import resolve_model
from prompts import BenchPrompt, read_prompts

INSTALL = "the package dflash is not installed: pip install --no-deps dflash==0.1.0"


@dataclass(frozen=True)
class Run:
    """One greedy output: its ids, and how many tokens after the first one came in how many decode steps."""

    token_ids: list[int]
    tokens: int
    steps: int


@dataclass(frozen=True)
class Pair:
    """A prompt in both implementations."""

    group: str
    theirs: Run
    ours: Run


def our_runner(options: argparse.Namespace) -> tuple[Callable[[list[int]], Run], LLM]:
    """draftproof on the whole block at every step, one request at a time, nothing kept between requests."""
    llm = LLM(
        options.model,
        options.drafter,
        dtype=options.dtype,
        draft_mode="fixed=99",
        max_num_seqs=1,
        prefix_caching=False,
    )
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)

    def run(prompt_ids: list[int]) -> Run:
        result = llm.generate([prompt_ids], params)[0]
        stats = result.stats
        return Run(list(result.token_ids), stats.decode_tokens, stats.target_steps)

    return run, llm


def their_runner(options: argparse.Namespace) -> Callable[[list[int]], Run]:
    """The package's Transformers model class, on a CPU."""
    try:
        from dflash import model as theirs
    except ImportError as error:
        raise SystemExit(f"{INSTALL} ({error})") from error
    from transformers import AutoModelForCausalLM, Qwen3Config

    # Statistics are taken between two synchronisations of a CUDA device, of which there is none here.
    theirs._cuda_time = time.perf_counter
    dtype = getattr(torch, options.dtype)
    config = Qwen3Config.from_pretrained(options.drafter)
    kind = (
        theirs.DFlash2DraftModel
        if "DFlash2DraftModel" in (config.architectures or ())
        else theirs.DFlashDraftModel
    )
    drafter = kind.from_pretrained(options.drafter, config=config, dtype=dtype).eval()
    target = AutoModelForCausalLM.from_pretrained(resolve_model(options.model).path, dtype=dtype).eval()

    ends = target.generation_config.eos_token_id
    end_token_ids = ends if isinstance(ends, list) else [ends]

    def run(prompt_ids: list[int]) -> Run:
        made: Any = theirs.dflash_generate(
            drafter,
            target,
            torch.tensor([prompt_ids]),
            max_new_tokens=options.max_tokens,
            stop_token_ids=end_token_ids,
            return_stats=True,
        )
        lengths = made.acceptance_lengths
        return Run(made.output_ids[0, len(prompt_ids) :].tolist(), sum(lengths), len(lengths))

    return run


def compare(options: argparse.Namespace) -> list[Pair]:
    """Both runs of every prompt, one after the other."""
    theirs = their_runner(options)  # first, for it may not be installed
    ours, llm = our_runner(options)
    pairs = []
    prompts = read_prompts(options.prompts, options.per_group)
    for prompt in track(prompts, "prompts", console=Console(stderr=True), disable=not sys.stderr.isatty()):
        ids = prompt_ids(llm, prompt)
        pairs.append(Pair(prompt.group, theirs(ids), ours(ids)))
    return pairs


def prompt_ids(llm: LLM, prompt: BenchPrompt) -> list[int]:
    """The chat template, as `LLM.chat` applies it."""
    found = llm.tokenizer.apply_chat_template(
        prompt.messages, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return [int(token) for token in found["input_ids"]]


def length(runs: list[Run]) -> float:
    """Tokens committed per decode step over all runs."""
    steps = sum(run.steps for run in runs)
    return sum(run.tokens for run in runs) / steps if steps else float("nan")


def show(pairs: list[Pair]) -> float:
    """Print a row a group and one for all; returns the ratio of all."""
    table = Table("group", "prompts", "same output", "dflash", "draftproof", "draftproof / dflash")
    groups = list(dict.fromkeys(pair.group for pair in pairs))
    ratio = float("nan")
    for group in [*groups, "all"]:
        mine = [pair for pair in pairs if group in (pair.group, "all")]
        theirs, ours = length([pair.theirs for pair in mine]), length([pair.ours for pair in mine])
        same = sum(pair.theirs.token_ids == pair.ours.token_ids for pair in mine)
        ratio = ours / theirs
        table.add_row(
            group, str(len(mine)), f"{same} of {len(mine)}", f"{theirs:.3f}", f"{ours:.3f}", f"{ratio:.3f}"
        )
    Console(width=110).print(table)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--drafter", required=True, help="checkpoint folder in the published layout")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--per-group", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument(
        "--within", type=float, default=None, help="fail when the ratio is further from 1 than this"
    )
    parser.add_argument("--json", type=Path, default=None, help="write every run here as well")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    pairs = compare(options)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(pair) for pair in pairs], indent=1), encoding="utf-8")
    ratio = show(pairs)
    if options.within is not None and not abs(ratio - 1) <= options.within:
        raise SystemExit(f"acceptance differs by {abs(ratio - 1):.1%}, more than {options.within:.1%}")


if __name__ == "__main__":
    main()
