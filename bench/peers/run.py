"""The same workload on draftproof and on its peers, in one run, in turns, each over its public interface.

    python bench/peers/run.py --prompts dev.jsonl --peers draftproof,transformers,llama.cpp,vllm --batch 1,16

Greedy, every output of exactly `--max-tokens` tokens, the same token ids as prompts, nothing cached between requests. All peers
are started once; while one runs the others are stopped (SIGSTOP). What is absent is said and left out. README.md tells how to
install each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clients import Job, Timing
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from draftproof.bench import BenchPrompt, Spread, read_prompts, workloads
from draftproof.bench.processor import processor_name
from draftproof.models.registry import resolve_model
from peers import AbsentError, LlamaPython, LlamaServer, Peer, Vllm, Wanted, Worker

NAMES = ("draftproof", "transformers", "llama.cpp", "vllm")


@dataclass(frozen=True)
class Measure:
    """One column of the table."""

    name: str
    unit: str
    of: Callable[[Timing], float]
    lower_is_better: bool = False


@dataclass(frozen=True)
class Cell:
    """One kind of job.

    Attributes:
        name: for people.
        job: of a round.
        measures: what is read off its timing.
    """

    name: str
    job: Callable[[int], Job]
    measures: tuple[Measure, ...]


@dataclass
class Outcome:
    """What was measured of one peer.

    Attributes:
        values: by measure, one a round.
        wrong_counts: outputs that were not as long as asked for.
        peak_mib: most memory resident, its processes added up.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    wrong_counts: int = 0
    peak_mib: float = 0.0


class Workload:
    """Jobs from prompts.

    Args:
        tokenizer: the model's.
        prompts: as many as there are; used over and over.
        max_tokens: of each output.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompts: list[BenchPrompt], max_tokens: int
    ) -> None:
        self._tokenizer, self._max_tokens = tokenizer, max_tokens
        self._plain = [prompt.text for prompt in prompts]
        self._texts = [self._chat(text) for text in self._plain]

    def _chat(self, text: str) -> str:
        messages = [{"role": "user", "content": text}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decoding(self, batch: int) -> Callable[[int], Job]:
        """`batch` prompts, the next ones every round."""

        def job(number: int) -> Job:
            texts = [self._texts[(number * batch + place) % len(self._texts)] for place in range(batch)]
            return Job([self._ids(text) for text in texts], texts, self._max_tokens)

        return job

    def prompt(self, length: int) -> Callable[[int], Job]:
        """One prompt of so many tokens, another one every round, and one token of output."""

        def job(number: int) -> Job:
            # Bare texts, and another one first in every round: nothing before has begun with the same tokens.
            start = number % len(self._plain)
            ids: list[int] = []
            for text in (self._plain[start:] + self._plain[:start]) * length:
                ids += self._ids(text + "\n")
                if len(ids) >= length:
                    break
            ids = ids[:length]
            return Job([ids], [str(self._tokenizer.decode(ids))], 1)

        return job


def cells(workload: Workload, options: argparse.Namespace) -> Iterator[Cell]:
    for batch in options.batch:
        speed = Measure(f"batch {batch}", "tok/s decoding", lambda timing: timing.decode_tokens_per_second)
        whole = Measure(
            f"batch {batch} with prompts", "tok/s in all", lambda timing: timing.total_tokens_per_second
        )
        first = Measure(
            f"batch {batch} first token",
            "ms",
            lambda timing: 1e3 * sum(timing.first) / len(timing.first),
            True,
        )
        yield Cell(f"batch {batch}", workload.decoding(batch), (speed, whole, first))
    name = f"prompt of {options.prompt_tokens}"
    yield Cell(
        name,
        workload.prompt(options.prompt_tokens),
        (Measure(name, "tok/s", lambda timing: timing.prompt_tokens_per_second),),
    )


def chosen_peers(options: argparse.Namespace) -> list[Peer]:
    """The peers asked for; draftproof once for every precision, and again with a drafter where one is named."""
    peers: list[Peer] = []
    for name in options.peers:
        if name == "draftproof":
            for dtype in options.dtype:
                base = ["--model", options.model, "--dtype", dtype]
                peers.append(Worker(f"draftproof {dtype}", "draftproof_worker.py", base))
                if options.drafter:
                    drafting = [*base, "--drafter", options.drafter, "--mode", "auto"]
                    peers.append(Worker(f"draftproof {dtype} drafting", "draftproof_worker.py", drafting))
        elif name == "transformers":
            peers.append(Worker(name, "transformers_worker.py", ["--model", "{model}"]))
        elif name == "llama.cpp":
            python = options.llama_python
            peers.append(LlamaPython(python) if python else LlamaServer(options.llama_server))
        else:
            peers.append(Vllm(options.vllm))
    return peers


def started(peers: list[Peer], wanted: Wanted, stack: ExitStack, console: Console) -> list[Peer]:
    """Those that are there, started and frozen."""
    there = []
    for peer in peers:
        stack.callback(peer.stop)
        try:
            with console.status(f"starting {peer.name}"):
                peer.start(wanted)
        except AbsentError as absent:
            peer.stop()
            console.print(f"{peer.name}: skipped: {absent}", soft_wrap=True)
            continue
        peer.freeze()
        there.append(peer)
    return there


def measure(
    peers: list[Peer], every: list[Cell], rounds: int, outcomes: dict[str, Outcome], console: Console
) -> None:
    """Fill in outcomes. Rounds on the outside: all peers see the same stretch of the machine's time. Round 0 does not count."""
    failed: set[str] = set()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=(rounds + 1) * len(every) * len(peers))
        for number in range(rounds + 1):
            for cell in every:
                job = cell.job(number)
                turn = number % len(peers)
                for peer in peers[turn:] + peers[:turn]:
                    progress.update(task, advance=1, description=f"{cell.name}: {peer.name}")
                    if peer.name in failed:
                        continue
                    try:
                        timing = _in_turn(peer, job)
                    except (RuntimeError, OSError) as error:
                        failed.add(peer.name)
                        console.print(f"{peer.name}: left out from here on: {error}", soft_wrap=True)
                        continue
                    if number > 0:
                        _note(outcomes[peer.name], cell, job, timing)
                    outcomes[peer.name].peak_mib = peer.peak_mib


def _in_turn(peer: Peer, job: Job) -> Timing:
    peer.thaw()
    try:
        return peer.run(job)
    finally:
        peer.freeze()


def _note(outcome: Outcome, cell: Cell, job: Job, timing: Timing) -> None:
    outcome.wrong_counts += sum(count != job.max_tokens for count in timing.tokens)
    for one in cell.measures:
        outcome.values.setdefault(one.name, []).append(one.of(timing))


def show(console: Console, outcomes: dict[str, Outcome], measures: list[Measure]) -> None:
    """A column a peer; then, for each of ours, a table of ratios with a column for each of the others."""
    if not outcomes:
        return
    table = _table("medians", ["", "unit", *outcomes])
    for one in measures:
        spreads = [Spread.of(outcome.values.get(one.name, [])) for outcome in outcomes.values()]
        table.add_row(
            one.name, one.unit, *("-" if spread is None else f"{spread.median:.1f}" for spread in spreads)
        )
    table.add_row("peak memory", "MiB", *(f"{outcome.peak_mib:.0f}" for outcome in outcomes.values()))
    table.add_row("outputs of another length", "", *(str(one.wrong_counts) for one in outcomes.values()))
    console.print(table)
    for name in outcomes:
        others = [other for other in outcomes if other != name]
        if not name.startswith("draftproof") or not others:
            continue
        ratios = _table(f"{name}: ratios within a round, above 1 where it is better", ["over", *others])
        for one in measures:
            ratios.add_row(one.name, *(_ratio(outcomes[name], outcomes[other], one) for other in others))
        console.print(ratios)


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, no_wrap=True, justify="left" if place == 0 else "right")
    return table


def _ratio(ours: Outcome, theirs: Outcome, one: Measure) -> str:
    pairs = zip(ours.values.get(one.name, []), theirs.values.get(one.name, []), strict=False)
    spread = Spread.of([theirs / ours if one.lower_is_better else ours / theirs for ours, theirs in pairs])
    return "-" if spread is None else f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def write(path: Path, options: argparse.Namespace, outcomes: dict[str, Outcome]) -> None:
    """All values, in one piece."""
    setup = {
        "model": options.model,
        "prompts": Path(options.prompts).name if options.prompts else "built in",
        "drafter": Path(options.drafter).name if options.drafter else None,
        "max_tokens": options.max_tokens,
        "prompt_tokens": options.prompt_tokens,
        "rounds": options.rounds,
        "threads": options.threads,
        "processor": processor_name(),
        "python": platform.python_version(),
    }
    document = {"setup": setup, "peers": {name: asdict(outcome) for name, outcome in outcomes.items()}}
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def main() -> None:
    options = _options()
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 180)
    prompts = workloads(read_prompts(options.prompts), [options.group])[options.group]
    resolved = resolve_model(options.model)
    tokenizer = AutoTokenizer.from_pretrained(resolved.path)
    workload = Workload(tokenizer, prompts, options.max_tokens)
    every = list(cells(workload, options))
    logs = Path(tempfile.mkdtemp(prefix="peers-"))
    ends = tuple({token for token in (tokenizer.eos_token_id, 0) if token is not None})
    wanted = Wanted(
        model=Path(resolved.path),
        gguf=options.gguf,
        threads=options.threads,
        batch=max(options.batch),
        context=options.context,
        end_token_ids=ends,
        logs=logs,
    )
    outcomes: dict[str, Outcome] = {}
    with ExitStack() as stack:
        peers = started(chosen_peers(options), wanted, stack, console)
        outcomes.update((peer.name, Outcome()) for peer in peers)
        try:
            if peers:
                measure(peers, every, options.rounds, outcomes, console)
        except KeyboardInterrupt:
            console.print("interrupted; what was measured:")
    show(
        Console(width=None if sys.stdout.isatty() else 180),
        outcomes,
        [m for cell in every for m in cell.measures],
    )
    if options.json:
        write(options.json, options, outcomes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def listed(text: str) -> list[str]:
        return [part.strip() for part in text.split(",")]

    parser.add_argument("--prompts", type=Path, default=None, help="JSON Lines; the built-in set without")
    parser.add_argument("--group", default="mixed")
    parser.add_argument("--peers", type=listed, default=list(NAMES), help=", ".join(NAMES))
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 16])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=512, help="of the prompt that is timed alone")
    parser.add_argument("--context", type=int, default=2048, help="most tokens of a request")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", type=listed, default=["auto"], help="of draftproof; several with commas")
    parser.add_argument("--drafter", default=None, help="also run draftproof with it, draft mode auto")
    parser.add_argument("--gguf", type=Path, default=None, help="the model's GGUF file, for llama.cpp")
    parser.add_argument("--llama-server", default=None, help="llama.cpp's server; on the PATH without")
    parser.add_argument("--llama-python", default=None, help="instead: a Python that has llama_cpp.server")
    parser.add_argument("--vllm", default="python3", help="a Python that has vLLM's CPU build")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    unknown = [name for name in options.peers if name not in NAMES]
    if unknown:
        parser.error(f"unknown peers {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return options


if __name__ == "__main__":
    main()
