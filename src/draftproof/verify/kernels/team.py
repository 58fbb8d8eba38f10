"""Running one piece of work on several threads at once, preferably on torch's own.

After a parallel operation torch's OpenMP workers keep spinning for some milliseconds, in case more work comes. A new
thread would have to share a core with one of them, and gain nothing. So where torch brings GNU OpenMP, the work is
handed to these very workers; elsewhere it goes to new threads.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def _gnu_openmp() -> Any:
    """`GOMP_parallel` of the library that torch itself has loaded, or None."""
    if "backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            enter = ctypes.CDLL(
                str(path)
            ).GOMP_parallel  # a library that is loaded already is not loaded twice
        except (OSError, AttributeError):
            continue
        enter.argtypes = [_REGION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        enter.restype = None
        return enter
    return None


def run_together(work: Callable[[], None], count: int) -> None:
    """Run `work` on about `count` threads, this one among them, and return when all are done.

    Args:
        work: takes what is left to do until nothing is; it may find nothing, and is run at least once.
        count: how many threads there is work for.

    Raises:
        The first exception of any of them.
    """
    failures: list[BaseException] = []

    def guarded(_: object = None) -> None:
        try:
            work()
        except BaseException as failure:  # raised in the caller's thread below
            failures.append(failure)

    threads = torch.get_num_threads()
    if min(threads, count) <= 1:
        work()
        return
    enter = _gnu_openmp()
    # The team must be torch's whole team: asking for fewer would make the library dismiss the others for good.
    if enter is not None and threads <= 2 * count:
        enter(_REGION(guarded), None, threads, 0)
    else:
        _on_new_threads(guarded, min(threads, count) - 1)
    if failures:
        raise failures[0]


def _on_new_threads(work: Callable[[], None], helpers: int) -> None:
    """`threading.Thread` waits until the thread runs, which takes as long as reading a row; this does not."""

    def help_out(done: _thread.LockType) -> None:
        try:
            work()
        finally:
            done.release()

    unfinished = []
    for _ in range(helpers):
        done = _thread.allocate_lock()
        done.acquire()
        _thread.start_new_thread(help_out, (done,))
        unfinished.append(done)
    work()
    for done in unfinished:
        done.acquire()
