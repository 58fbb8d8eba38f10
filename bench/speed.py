"""Is drafting ever slower? Draft modes against `off`, interleaved in one process, by prompt group and batch size.

    python bench/speed.py --prompts dev.jsonl --drafter FOLDER --batch 1,4,16,32 --modes auto,off --rounds 15

In every round each mode generates the same tokens for the same prompts (with `--batches`, the group's next prompts in the next
round, and round again). The modes take turns step by step, so that a machine that is slow for a second is slow for all of them:
a mode's time is the sum of its own steps, from handing the prompts in to the last token. What counts is the ratio of the times
within a round, given twice with its 95% interval: by ranks, which a few bad rounds cannot spoil, and by means. One line of JSON
a cell (group x batch) goes to `--out`; cells already there are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scipy import stats

from draftproof import LLM, EngineOptions, SamplingParams
from draftproof.engine import StreamEvent
from draftproof.engine.prompts import Messages
from draftproof.models.drafters import write_random_checkpoint
from prompts import BenchPrompt, read_prompts

MIXED = "mixed"


@dataclass(frozen=True)
class Cell:
    """One group at one batch size.

    Attributes:
        seconds: by mode, one entry a round.
        acceptance: acceptance length by mode, over all rounds.
        lengths: mean draft length by mode.
        identical: whether every mode gave the same tokens.
    """

    drafter: str
    group: str
    batch: int
    temperature: float
    max_tokens: int
    seconds: dict[str, list[float]]
    acceptance: dict[str, float]
    lengths: dict[str, float]
    identical: bool

    def logs(self, mode: str) -> list[float]:
        """Logarithm of a mode's speed over `off`, for each round."""
        return [math.log(off / on) for on, off in zip(self.seconds[mode], self.seconds["off"], strict=True)]


@dataclass(frozen=True)
class Ratio:
    """A speed over another, and its 95% interval."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} [{self.low:.3f}, {self.high:.3f}]"


def by_signed_ranks(logs: list[float]) -> Ratio:
    """The median of all pairs' means, and the interval of Wilcoxon's signed rank test.

    A round in which the machine was busy elsewhere counts as one round, however long it took. (Hodges and Lehmann 1963; the
    interval's rank by the normal approximation, good from 10 rounds on: Hollander and Wolfe, "Nonparametric Statistical
    Methods", 3.3. With fewer rounds it is the whole range.)
    """
    n = len(logs)
    means = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    spread = 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    outside = max(0, math.floor(n * (n + 1) / 4 - spread)) if n >= 10 else 0
    chosen = statistics.median(means), means[outside], means[len(means) - 1 - outside]
    return Ratio(*map(math.exp, chosen))


def by_t(logs: list[float]) -> Ratio:
    """The geometric mean, and Student's interval on the logarithms."""
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), 0.0, math.inf)
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


class Engines:
    """The target once, an engine for every mode."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.off = LLM(options.model, dtype=options.dtype, max_model_len=2048)
        info = self.off.target.info
        drafter = options.drafter
        if drafter == "random":
            write_random_checkpoint(
                folder,
                hidden_size=info.hidden_size,
                vocab_size=info.vocab_size,
                num_target_layers=info.num_layers,
                num_layers=options.layers,
            )
            drafter = str(folder)
        sizes = EngineOptions(max_num_seqs=64)
        self.by_mode = {
            mode: self.off
            if mode == "off"
            else self.off.with_drafter(drafter, draft_mode=mode, options=sizes)
            for mode in options.modes
        }


class Answering:
    """One engine on its way through some requests.

    Args:
        llm: the engine.
        conversations, params: of the requests.

    Attributes:
        seconds: spent so far.
    """

    def __init__(self, llm: LLM, conversations: Sequence[Messages], params: Sequence[SamplingParams]) -> None:
        self._llm, self._events = llm, deque[StreamEvent]()
        began = time.perf_counter()
        requests = [
            llm.prepare(None, mine, self._events.append, messages=messages)
            for messages, mine in zip(conversations, params, strict=True)
        ]
        for request in requests:
            llm.loop.add(request)
        self._order = [request.request_id for request in requests]
        self.seconds = time.perf_counter() - began

    def step(self) -> bool:
        """One step; whether there is more to do."""
        began = time.perf_counter()
        more = self._llm.loop.step()
        self.seconds += time.perf_counter() - began
        return more

    def token_ids(self) -> list[list[int]]:
        """The outputs, in the requests' order. Raises the error of one that failed."""
        results = {event.request_id: event.result for event in self._events if event.result is not None}
        for result in results.values():
            if result.error is not None:
                raise result.error
        return [results[name].token_ids for name in self._order]


def measure(
    engines: Engines, options: argparse.Namespace, group: str, prompts: list[BenchPrompt], batch: int
) -> Cell:
    chosen = [prompts[index % len(prompts)] for index in range(batch * options.batches)]
    params = [
        SamplingParams(
            temperature=options.temperature, seed=index, max_tokens=options.max_tokens, ignore_eos=True
        )
        for index in range(batch)
    ]
    messages = [prompt.messages for prompt in chosen]
    seconds: dict[str, list[float]] = {mode: [] for mode in options.modes}
    luck = random.Random(0)
    before = {mode: engine.metrics for mode, engine in engines.by_mode.items()}
    outputs: dict[str, list[list[int]]] = {mode: [[] for _ in messages] for mode in options.modes}
    for round_number in range(options.rounds + options.batches):
        first = round_number % options.batches * batch
        answers = {
            mode: Answering(engines.by_mode[mode], messages[first : first + batch], params)
            for mode in options.modes
        }
        running = list(answers.values())
        while running:
            luck.shuffle(running)
            running = [answer for answer in running if answer.step()]
        for mode, answer in answers.items():
            if round_number >= options.batches:  # the first ones fill the prefix caches
                seconds[mode].append(answer.seconds)
            outputs[mode][first : first + batch] = answer.token_ids()
    acceptance, lengths = {}, {}
    for mode, engine in engines.by_mode.items():
        now, then = engine.metrics, before[mode]
        steps = now.decode_steps - then.decode_steps
        acceptance[mode] = 1 + (now.accepted_tokens - then.accepted_tokens) / steps
        lengths[mode] = (now.drafted_tokens - then.drafted_tokens) / steps
    same = all(tokens == outputs["off"] for tokens in outputs.values())
    return Cell(
        str(options.drafter),
        group,
        batch,
        options.temperature,
        options.max_tokens,
        seconds,
        acceptance,
        lengths,
        same,
    )


def run(options: argparse.Namespace) -> list[Cell]:
    prompts = read_prompts(options.prompts, 32)
    groups: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.group, []).append(prompt)
    # One of each group in turn.
    groups[MIXED] = [p for place in range(8) for ps in list(groups.values()) for p in ps[place : place + 1]]
    wanted = options.groups or list(groups)
    cells = (
        [Cell(**json.loads(line)) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    done = {
        (c.drafter, c.group, c.batch, c.temperature) for c in cells if set(options.modes) <= set(c.seconds)
    }
    todo = [
        (group, batch)
        for batch in options.batch
        for group in wanted
        if (str(options.drafter), group, batch, options.temperature) not in done
    ]
    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as progress:
        engines = Engines(options, Path(folder))
        for group, batch in progress.track(todo, description="cells"):
            cells.append(measure(engines, options, group, groups[group], batch))
            with options.out.open("a") as out:
                out.write(json.dumps(asdict(cells[-1])) + "\n")
    return cells


def show(cells: list[Cell], modes: list[str]) -> None:
    table = Table(
        "drafter", "group", "batch", "mode", "speed over off (ranks)", "(t)", "rounds", "tau", "draft"
    )
    for cell in cells:
        for mode in cell.seconds:
            if mode == "off" or mode not in modes:
                continue
            logs = cell.logs(mode)
            table.add_row(
                Path(cell.drafter).name,
                cell.group,
                str(cell.batch),
                mode,
                str(by_signed_ranks(logs)),
                str(by_t(logs)),
                str(len(logs)),
                f"{cell.acceptance[mode]:.2f}",
                f"{cell.lengths[mode]:.2f}" + ("" if cell.identical else "  TOKENS DIFFER"),
            )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", required=True, help="folder, hub id, ngram, or random")
    parser.add_argument("--layers", type=int, default=2, help="of the random drafter")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--batch", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16, 32]
    )
    parser.add_argument("--groups", type=lambda text: text.split(","), default=None)
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["auto", "off"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, default=1, help="of different prompts, a round each, in turn")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=Path("speed.jsonl"))
    options = parser.parse_args()
    if "off" not in options.modes:
        parser.error("--modes must include off, which the others are compared with")
    show(run(options), options.modes)


if __name__ == "__main__":
    main()
