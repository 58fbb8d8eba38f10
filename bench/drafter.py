"""How long the drafter takes: proposing and taking in context, compiled against torch.

    python bench/drafter.py                               # shapes of SmolLM2-135M, random weights
    python bench/drafter.py --precisions int8/int8 int8/int4
    python bench/drafter.py --cpu-time                    # one thread, its CPU time: for a machine that is busy with other work

Weights are fetched from memory in every call, as they are in an engine, where the target's pass comes between: the caches are
flushed before each. Ways are interleaved; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from draftproof.models.drafters import (
    ContextUpdate,
    Drafter,
    DraftRequest,
    DraftSampling,
    TargetInfo,
    load_drafter,
    write_random_checkpoint,
)
from draftproof.models.drafters.dense import linear
from draftproof.models.drafters.fused_weights import Precisions
from draftproof.models.kernels.packing import Precision, pack

HIDDEN, VOCAB, DEPTH, TAPS = 576, 49152, 30, (1, 7, 14, 20, 27)
PROPOSALS = [(1, 2, 256), (1, 3, 256), (1, 7, 256), (4, 2, 256), (16, 1, 256), (1, 3, 2000)]
"""(sequences, draft tokens of each, tokens of context)"""
EXTENSIONS = [1, 4, 128, 512]
"""tokens of one sequence"""
_FLUSH_BYTES = 64 << 20


@dataclass(frozen=True)
class Way:
    """One way to run the drafter."""

    name: str
    drafter: Drafter


def make_ways(precisions: list[str]) -> list[Way]:
    """The drafter in torch, and compiled in each pair of precisions (layers/head)."""
    embedding = (torch.randn(VOCAB, HIDDEN) * 0.1).bfloat16()
    info = TargetInfo(
        name="random",
        hidden_size=HIDDEN,
        num_layers=DEPTH,
        vocab_size=VOCAB,
        max_position=8192,
        embedding=embedding,
        lm_head=linear(embedding),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        model_type="llama",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = write_random_checkpoint(
            Path(folder),
            hidden_size=HIDDEN,
            vocab_size=VOCAB,
            num_target_layers=DEPTH,
            target_layer_ids=TAPS,
            num_layers=3,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            intermediate_size=1536,
        )
        ways = [Way("torch", load_drafter(path, info, executor="torch"))]
        for pair in precisions:
            layers, head = (Precision(name) for name in pair.split("/"))
            packed = replace(info, packed_head=pack(embedding, head))
            ways.append(Way(pair, load_drafter(path, packed, precisions=Precisions(layers, head))))
    return ways


def proposal(drafter: Drafter, sequences: int, drafts: int, context: int) -> Callable[[], object]:
    """A call of `propose`."""
    features = torch.randn(context, len(TAPS) * HIDDEN).bfloat16()
    states = [drafter.new_state() for _ in range(sequences)]
    drafter.extend([ContextUpdate(state, features, 0) for state in states])
    tokens = [1] * (context + 1)
    requests = [DraftRequest(state, tokens, drafts, 0, DraftSampling()) for state in states]
    return lambda: drafter.propose(requests)


def extension(drafter: Drafter, count: int) -> Callable[[], object]:
    """A call of `extend`; the state forgets what it took in."""
    features, state = torch.randn(count, len(TAPS) * HIDDEN).bfloat16(), drafter.new_state()

    def call() -> None:
        state.length = 0
        drafter.extend([ContextUpdate(state, features, 0)])

    return call


def measure(calls: dict[str, Callable[[], object]], repeats: int, cpu_time: bool) -> dict[str, float]:
    """Milliseconds of each call, medians."""
    clock = time.thread_time if cpu_time else time.perf_counter
    spent: dict[str, list[float]] = {name: [] for name in calls}
    flush = torch.zeros(_FLUSH_BYTES, dtype=torch.uint8)
    for turn in range(repeats + 1):
        for name, call in calls.items():
            flush.add_(1)
            start = clock()
            call()
            if turn:  # the first turn compiles
                spent[name].append((clock() - start) * 1e3)
    return {name: round(statistics.median(times), 3) for name, times in spent.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--precisions", nargs="*", default=["int8/int4"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.cpu_time:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    ways = make_ways(args.precisions)
    rows: dict[str, dict[str, float]] = {}
    for case in PROPOSALS:
        calls = {way.name: proposal(way.drafter, *case) for way in ways}
        sequences, drafts, context = case
        label = f"propose: {sequences} x {drafts} drafts, context {context}"
        rows[label] = measure(calls, args.repeats, args.cpu_time)
    for count in EXTENSIONS:
        calls = {way.name: extension(way.drafter, count) for way in ways}
        rows[f"extend: {count} tokens"] = measure(calls, args.repeats, args.cpu_time)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("call", *(way.name for way in ways), title=f"ms, {torch.get_num_threads()} threads")
    for label, figures in rows.items():
        table.add_row(label, *(str(figures[way.name]) for way in ways))
    Console().print(table)


if __name__ == "__main__":
    main()
