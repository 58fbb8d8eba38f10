"""Compiles the kernels of every executor once, before the tests: else each of their processes compiles all of them for itself.

Machine code stays in numba's cache: on two cores some minutes, and some 20 seconds where nothing has changed.

python -m support.compile_ahead    (in the folder tests)
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from draftproof import SamplingParams
from draftproof.cli.generate import hide_loading_bars
from support.llms import EXECUTORS, make_drafter, named, tiny_llm

PROCESSES = 2
PROMPTS = ["Once upon a time", "There"]
PARAMS = [
    SamplingParams(temperature=t, top_p=0.9, seed=1, max_tokens=12, ignore_eos=True) for t in (0.0, 0.9)
]


def compile_all_of(index: int) -> float:
    """Decode a little with one of `EXECUTORS` and DFlash drafters; seconds it took."""
    hide_loading_bars()
    start = time.monotonic()
    llm = tiny_llm("llama", EXECUTORS[index])
    for kind in ("dflash", "dflash2"):
        llm.with_drafter(make_drafter(llm, kind, 4)).generate(PROMPTS, PARAMS, progress=False)
    return time.monotonic() - start


def main() -> None:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        # The last ones compile the most.
        jobs = {pool.submit(compile_all_of, index): index for index in reversed(range(len(EXECUTORS)))}
        for job in as_completed(jobs):
            print(f"kernels of {named(EXECUTORS[jobs[job]])}: {job.result():.0f} s", flush=True)


if __name__ == "__main__":
    main()
