"""Packed products against oneDNN's: microseconds, bytes and multiplications a second, for the shapes of SmolLM2-135M.

    python bench/gemm.py                            # single shapes, and the sum over the whole model
    python bench/gemm.py --sums --rows 1 8 512      # the sum only

Weights are read from memory, as in a model: every shape is there in so many copies that no cache holds them, and a
measurement walks through all of them. Times include preparing the rows (rounding, scales), once per product. Each is the
least of `--repeats`; the others, on a machine with nothing else to do, differ little.

The row `read` is a plain sum over as many bytes as the weights have, on as many threads: what the memory gives.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from draftproof.models.kernels.compiling import compiled
from draftproof.models.kernels.gemm import prepare, product
from draftproof.models.kernels.packing import (
    GROUP,
    KINDS,
    TILE,
    Activations,
    PackedWeight,
    Precision,
    fast,
    group_bytes,
    pack,
    padded,
)
from draftproof.models.kernels.phases import add_release, counters_for, done_of, take, taken_of, wait
from draftproof.models.linear import RowInvariantLinear
from draftproof.verify.kernels.team import run_together

Shapes = list[tuple[int, int]]

LAYERS = 30
LAYER_SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576))
HEAD_SHAPE = (576, 49152)
SHAPES = (*LAYER_SHAPES, HEAD_SHAPE)
UNCACHED_BYTES = 128 << 20
TASK_BYTES = 48 << 10
PREPARED_TOGETHER = 16


@compiled()
def sweep(table, counters, x, x_stride, rows, values, scales, sums, out, out_stride, kind):
    """All products of a table, one after the other; every thread of a team calls this.

    Args:
        table: int64 ``[n, 4]``: address, in_features, tiles, tiles of a task.
        counters: address of the counters of ``2 * n`` phases.
    """
    for index in range(table.shape[0]):
        weight, width, tiles, some = table[index, 0], table[index, 1], table[index, 2], table[index, 3]
        taken, done = taken_of(counters, 2 * index), done_of(counters, 2 * index)
        tasks = (rows + PREPARED_TOGETHER - 1) // PREPARED_TOGETHER
        task = take(taken)
        while task < tasks:
            for row in range(task * PREPARED_TOGETHER, min(rows, (task + 1) * PREPARED_TOGETHER)):
                prepare(x + row * x_stride * 4, width, width, values, scales, sums, row, kind)
            add_release(done, 1)
            task = take(taken)
        wait(done, tasks)
        taken, done = taken_of(counters, 2 * index + 1), done_of(counters, 2 * index + 1)
        tasks = (tiles + some - 1) // some
        task = take(taken)
        while task < tasks:
            for tile in range(task * some, min(tiles, (task + 1) * some)):
                there = out + tile * TILE * 4
                product(weight, 0, width, tile, values, scales, sums, 0, rows, there, out_stride, kind)
            add_release(done, 1)
            task = take(taken)
        wait(done, tasks)


def packed_shapes(shapes: Shapes, precision: Precision) -> list[PackedWeight]:
    """A weight for each shape (in, out). Those of one shape have the same numbers, but memory of their own."""
    made: dict[tuple[int, int], PackedWeight] = {}
    weights = []
    for shape in shapes:
        if shape not in made:
            made[shape] = pack(torch.randn(shape[1], shape[0]) * 0.05, precision)
        first = made[shape]
        weights.append(
            PackedWeight(
                precision,
                first.out_features,
                first.in_features,
                first.padded_out,
                first.padded_in,
                first.data.clone(),
                None,
                None,
            )
        )
    return weights


def ours(shapes: Shapes, precision: Precision, rows: int, threads: int) -> Callable[[], None]:
    """A call that multiplies `rows` rows with a weight of each shape."""
    weights = packed_shapes(shapes, precision)
    widest, longest = max(w.padded_out for w in weights), max(w.padded_in for w in weights)
    x, out = torch.randn(rows, longest), torch.empty(rows, widest)
    acts = Activations.empty(rows, longest, precision)
    table = np.array([task_line(weight) for weight in weights], np.int64)
    counters = counters_for(2 * len(weights))
    arguments = (
        table,
        counters.ctypes.data,
        x.data_ptr(),
        longest,
        rows,
        *acts.address(),
        out.data_ptr(),
        widest,
        KINDS[precision],
    )
    alive = (weights, x, out, acts)

    def call() -> None:
        assert alive
        counters[:] = 0
        run_together(lambda: sweep(*arguments), threads)

    return call


def task_line(weight: PackedWeight) -> tuple[int, int, int, int]:
    some = max(1, TASK_BYTES // weight.data.shape[1])
    return weight.address()[0], weight.padded_in, weight.tiles, some


def onednn(shapes: Shapes, rows: int) -> Callable[[], None]:
    """The same with oneDNN's packed bfloat16 linears, called from Python one by one."""
    linears = [RowInvariantLinear(torch.randn(n, k).bfloat16() * 0.05) for k, n in shapes]
    inputs = {k: torch.randn(rows, k).bfloat16() for k, _ in set(shapes)}

    def call() -> None:
        for linear, (k, _) in zip(linears, shapes, strict=True):
            linear(inputs[k])

    return call


def least(call: Callable[[], None], repeats: int) -> float:
    """Seconds of the fastest call."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def stored(shapes: Shapes, precision: Precision) -> int:
    """Bytes of the packed weights."""
    return sum(
        padded(n, TILE) // TILE * padded(k, GROUP) // GROUP * group_bytes(precision) for k, n in shapes
    )


def read_rate(size: int, repeats: int) -> float:
    """Bytes a second of a plain sum over memory."""
    memory = torch.ones(size // 8, dtype=torch.int64)
    return size / least(lambda: memory.sum(), repeats)


def report(
    title: str,
    call: Callable[[], None],
    repeats: int,
    precision: Precision,
    rows: int,
    shapes: Shapes,
    count: int,
) -> None:
    seconds = least(call, repeats)
    multiplications = rows * sum(k * n for k, n in shapes)
    print(
        f"{title:38s} {seconds / count * 1e6:10.1f} us {stored(shapes, precision) / seconds / 1e9:7.1f} GB/s "
        f"{multiplications / seconds / 1e9:8.1f} GMAC/s",
        flush=True,
    )


def measure(options: argparse.Namespace, threads: int) -> None:
    torch.set_num_threads(threads)
    print(f"--- {threads} thread(s); read {read_rate(UNCACHED_BYTES, options.repeats) / 1e9:.1f} GB/s")
    for rows in options.rows:
        for precision in map(Precision, options.precisions):
            for title, shapes, count in jobs(precision, options.sums):
                call = ours(shapes, precision, rows, threads)
                report(
                    f"{precision.value} {rows} rows {title}",
                    call,
                    options.repeats,
                    precision,
                    rows,
                    shapes,
                    count,
                )
        if options.onednn:
            precision = Precision.BFLOAT16
            for title, shapes, count in jobs(precision, options.sums):
                call = onednn(shapes, rows)
                report(
                    f"oneDNN bf16 {rows} rows {title}", call, options.repeats, precision, rows, shapes, count
                )


def jobs(precision: Precision, only_sums: bool) -> Iterator[tuple[str, Shapes, int]]:
    """Title, shapes to go through in one measurement, and by how many to divide it."""
    yield "whole model", [*LAYER_SHAPES * LAYERS, HEAD_SHAPE], 1
    for k, n in () if only_sums else SHAPES:
        count = -(-UNCACHED_BYTES // stored([(k, n)], precision))
        yield f"{k}x{n}", [(k, n)] * count, count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [precision.value for precision in Precision]
    parser.add_argument("--precisions", nargs="+", choices=names, default=names)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8, 16, 32, 128, 512])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sums", action="store_true", help="only the sum over the whole model")
    parser.add_argument("--no-onednn", dest="onednn", action="store_false")
    options = parser.parse_args()
    for precision in Precision:
        print(f"{precision.value}: {'own instructions' if fast(precision) else 'plain vector code'}")
    for threads in options.threads:
        measure(options, threads)


if __name__ == "__main__":
    main()
