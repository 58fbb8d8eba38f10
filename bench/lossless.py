"""Token identity of drafting on and off, on a real model: every drafter x block size x sampling on real prompts.

    python bench/lossless.py --prompts dev.jsonl --drafter FOLDER --out lossless.jsonl

One line of JSON a case goes to `--out`; cases already there are not run again, so an interrupted run goes on where it
stopped. Exit status 1 when any output differed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from draftproof import LLM, RequestResult, SamplingParams
from draftproof.models.drafters import write_random_checkpoint
from prompts import BenchPrompt, read_prompts

SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "0.8 / top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "1.0 / top-k 20": {"temperature": 1.0, "top_k": 20},
    "1.0 / min-p 0.05": {"temperature": 1.0, "min_p": 0.05},
}
MAIN = ("dflash", 8)
"""The combination that is run on many prompts, with the first two samplings."""


@dataclass(frozen=True)
class Case:
    """One combination on one prompt."""

    drafter: str
    block_size: int
    sampling: str
    group: str
    index: int
    max_tokens: int

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def cases(many: list[BenchPrompt], few: list[BenchPrompt]) -> Iterator[tuple[Case, BenchPrompt]]:
    """The main combination on `many` prompts x 128 tokens; all others on `few` x 48."""
    main_samplings = list(SAMPLINGS)[:2]
    for sampling in main_samplings:
        for prompt in many:
            yield Case(*MAIN, sampling, prompt.group, prompt.index, 128), prompt
    for drafter in ("dflash", "ngram", "random"):
        for block_size in (2, 4, 8):
            for sampling in SAMPLINGS:
                if (drafter, block_size) == MAIN and sampling in main_samplings:
                    continue
                for prompt in few:
                    yield Case(drafter, block_size, sampling, prompt.group, prompt.index, 48), prompt


class Engines:
    """The target once, with every drafter around it."""

    def __init__(self, model: str, drafter: str, dtype: str, random_folder: Path) -> None:
        self.off = LLM(model, dtype=dtype, draft_mode="fixed=99")
        info = self.off.target.info
        write_random_checkpoint(
            random_folder,
            hidden_size=info.hidden_size,
            vocab_size=info.vocab_size,
            num_target_layers=info.num_layers,
            num_layers=1,
        )
        self._sources = {"dflash": drafter, "ngram": "ngram", "random": str(random_folder)}
        self._on: dict[tuple[str, int], LLM] = {}
        self._without: dict[tuple[str, str, int, int], RequestResult] = {}

    def compare(self, case: Case, prompt: BenchPrompt) -> dict[str, object]:
        params = SamplingParams(
            **SAMPLINGS[case.sampling], seed=1234 + case.index, max_tokens=case.max_tokens, ignore_eos=True
        )
        on = self._drafting(case.drafter, case.block_size).chat(prompt.messages, params)[0]
        off = self._undrafted(case, prompt, params)
        return {
            **asdict(case),
            "identical": on.token_ids == off.token_ids and on.text == off.text,
            "acceptance_length": on.stats.acceptance_length,
            "seconds_on": on.stats.seconds.decode,
            "seconds_off": off.stats.seconds.decode,
        }

    def _drafting(self, drafter: str, block_size: int) -> LLM:
        key = (drafter, block_size)
        if key not in self._on:
            self._on[key] = self.off.with_drafter(self._sources[drafter], block_size)
        return self._on[key]

    def _undrafted(self, case: Case, prompt: BenchPrompt, params: SamplingParams) -> RequestResult:
        key = (case.sampling, case.group, case.index, case.max_tokens)
        if key not in self._without:
            self._without[key] = self.off.chat(prompt.messages, params)[0]
        return self._without[key]


def run(options: argparse.Namespace) -> list[dict[str, object]]:
    many = read_prompts(options.prompts, options.per_group)
    few = [prompt for prompt in many if prompt.index < 2][:8]
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {
        json.dumps({name: row[name] for name in Case.__dataclass_fields__}, sort_keys=True) for row in rows
    }
    todo = [(case, prompt) for case, prompt in cases(many, few) if case.key not in done]
    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as progress:
        engines = Engines(options.model, options.drafter, options.dtype, Path(folder))
        for case, prompt in progress.track(todo, description="cases"):
            rows.append(engines.compare(case, prompt))
            with options.out.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
    return rows


def show(rows: list[dict[str, object]]) -> None:
    table = Table("drafter", "block", "sampling", "tokens each", "identical", "acceptance length")
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in rows:
        groups.setdefault((row["drafter"], row["block_size"], row["sampling"], row["max_tokens"]), []).append(
            row
        )
    for key, members in groups.items():
        identical = sum(bool(row["identical"]) for row in members)
        mean = sum(float(str(row["acceptance_length"])) for row in members) / len(members)
        table.add_row(*map(str, key), f"{identical} of {len(members)}", f"{mean:.2f}")
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", required=True, help="folder of a DFlash checkpoint")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--per-group", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("lossless.jsonl"))
    options = parser.parse_args()
    rows = run(options)
    show(rows)
    differing = sum(not row["identical"] for row in rows)
    print(f"{len(rows)} outputs compared, {differing} differ")
    raise SystemExit(1 if differing else 0)


if __name__ == "__main__":
    main()
