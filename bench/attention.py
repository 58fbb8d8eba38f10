"""How long attention takes a layer: compiled over pages, in stock operators, and torch's own (not row-invariant).

    python bench/attention.py                           # shapes of SmolLM2-135M
    python bench/attention.py --heads 32,8 --dim 128    # other shapes
    python bench/attention.py --cpu-time                # one thread, its CPU time: for a machine that is busy with other work

Both of our forms include storing the new keys and values and all Python. torch's own gets one sequence's keys, whole and
in one piece, for every sequence in turn. Layers take turns over storage of their own, so keys are as cold as in a pass of
the target. Ways are interleaved; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from draftproof.models import kernels
from draftproof.models.attention_pass import ForwardPass
from draftproof.models.attention_reference import AttentionRule
from draftproof.models.kv import KEY_BLOCK, LayerShape, SequenceKV, TargetPages
from draftproof.models.rows import Segment

LAYERS = 12
CASES = [(1, 1, 256), (1, 8, 256), (32, 1, 256), (32, 8, 256), (1, 1, 2000), (1, 512, 0), (1, 512, 1024)]
"""(sequences, rows of each, positions before them)"""


@dataclass(frozen=True)
class Setting:
    """Shapes, dtype, repeats."""

    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    repeats: int
    cpu_time: bool

    def clock(self) -> float:
        """Seconds."""
        return time.thread_time() if self.cpu_time else time.perf_counter()


@dataclass(frozen=True)
class Row:
    """One line of the table; milliseconds a layer, medians."""

    sequences: int
    rows: int
    context: int
    compiled: float | None
    reference: float
    stock: float


class Work:
    """Inputs of one case, and the ways to attend."""

    def __init__(self, setting: Setting, sequences: int, rows: int, context: int) -> None:
        self.setting, self.rows = setting, rows
        shape = LayerShape(setting.kv_heads, setting.dim, setting.dim)
        blocks = -(-(context + rows) // KEY_BLOCK)
        pages = TargetPages([shape] * LAYERS, sequences * blocks, setting.dtype, torch.device("cpu"))
        for layer in range(LAYERS):
            for stored in (pages.keys[layer], pages.values[layer]):
                assert stored is not None
                stored.normal_()
        tables = torch.randperm(sequences * blocks).view(sequences, blocks).tolist()
        tokens = torch.zeros(rows, dtype=torch.long)
        self.segments = [Segment(SequenceKV(pages, table, context), tokens, 0) for table in tables]
        self.rule = AttentionRule(setting.dim**-0.5)
        count = sequences * rows
        self.query = self._rows(count, setting.heads)
        self.key, self.value = self._rows(count, setting.kv_heads), self._rows(count, setting.kv_heads)
        length = context + rows
        self.stored = torch.randn(LAYERS, 2, 1, setting.kv_heads, length, setting.dim).to(setting.dtype)
        self.mask = torch.ones(rows, length, dtype=torch.bool).tril(context)

    def _rows(self, count: int, heads: int) -> torch.Tensor:
        return torch.randn(count, heads, self.setting.dim).to(self.setting.dtype).transpose(0, 1)

    def ours(self, compiled: bool) -> None:
        current = ForwardPass(self.segments, compiled)
        for layer in range(LAYERS):
            current.attend(layer, self.query, self.key, self.value, self.rule)

    def stock(self) -> None:
        for layer in range(LAYERS):
            keys, values = self.stored[layer]
            for index in range(len(self.segments)):
                query = self.query[None, :, index * self.rows : (index + 1) * self.rows]
                functional.scaled_dot_product_attention(
                    query, keys, values, attn_mask=self.mask, enable_gqa=True
                )


def measure(setting: Setting, sequences: int, rows: int, context: int) -> Row:
    """All ways on one case."""
    work = Work(setting, sequences, rows, context)
    ways: dict[str, Callable[[], None]] = {"reference": lambda: work.ours(False), "stock": work.stock}
    if kernels.available(torch.device("cpu"), setting.dtype):
        ways["compiled"] = lambda: work.ours(True)
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(setting.repeats + 1):
        for name, way in ways.items():
            start = setting.clock()
            way()
            if turn:  # the first turn compiles, and fetches memory
                spent[name].append((setting.clock() - start) / LAYERS * 1e3)
    medians = {name: round(statistics.median(times), 3) for name, times in spent.items()}
    return Row(sequences, rows, context, medians.get("compiled"), medians["reference"], medians["stock"])


def show(rows: list[Row], setting: Setting) -> None:
    """Print the table."""
    table = Table(title=f"milliseconds a layer, {setting.dtype}, {torch.get_num_threads()} threads")
    for column in ("sequences", "rows each", "context", "compiled", "stock operators", "torch's own"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in asdict(row).values()))
    Console().print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", default="9,3", help="query heads, key heads")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.cpu_time:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    heads, kv_heads = (int(part) for part in args.heads.split(","))
    dtype = getattr(torch, args.dtype)
    setting = Setting(heads, kv_heads, args.dim, dtype, args.repeats, args.cpu_time)
    with torch.inference_mode():
        rows = [measure(setting, *case) for case in CASES]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        show(rows, setting)


if __name__ == "__main__":
    main()
