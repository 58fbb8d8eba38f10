"""Measuring workloads: speed, latency, acceptance and memory, drafting on and off, in interleaved runs."""

from draftproof.bench.document import Results, Setup, read_results, write_results
from draftproof.bench.figures import Cell, ModeFigures, PhaseShares
from draftproof.bench.options import BenchOptions
from draftproof.bench.prompts import BUILT_IN, BenchPrompt, read_prompts, workloads
from draftproof.bench.spread import Percentiles, Spread
from draftproof.bench.suite import BenchInterrupted, run_bench

__all__ = [
    "BUILT_IN",
    "BenchInterrupted",
    "BenchOptions",
    "BenchPrompt",
    "Cell",
    "ModeFigures",
    "Percentiles",
    "PhaseShares",
    "Results",
    "Setup",
    "Spread",
    "read_prompts",
    "read_results",
    "run_bench",
    "workloads",
    "write_results",
]
