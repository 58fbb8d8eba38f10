"""Work in phases, shared by threads that need not know of one another.

A pass is a list of phases, and a phase a number of tasks. Each phase has two counters, `taken` and `done`. Every thread runs
the same program: for each phase in order, take tasks until none is left and count each one done; then wait until all are.
So any number of threads will do, one alone as well, and a thread that arrives late, or stands on a core that is busy with
something else, gets fewer tasks and delays nothing beyond the one it holds.

    counters = counters_for(phases)            # once, before the threads start
    ...
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    while True:
        task = take(taken)
        if task >= tasks:
            break
        ...                                    # the task
        add_release(done, 1)
    wait(done, tasks)

Whatever a task wrote is seen by every thread that has waited for its phase: counting a task done releases, and waiting
acquires. Counters lie a cache line apart, so that threads that take do not hinder those that wait.

Counters are spent when a pass is over. They may be cleared only when every thread has left; a team that joins, as
OpenMP's does, sees to that.
"""

# The types of compiled functions are numba's business.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import os
import platform

import numpy as np
from llvmlite import ir  # type: ignore[import-not-found,import-untyped,unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from draftproof.models.kernels.compiling import compiled

_LINE = 64
_PHASE = 2 * _LINE
_ALIGNMENT = 8
_SPINS = 40_000
"""Looks at a counter, with pauses between, before the core is offered to others: about half a millisecond. Once given away, it
is gone for a whole slice of the system's time."""
_LONG, _INT, _VOID = ir.IntType(64), ir.IntType(32), ir.VoidType()
_MACHINE = platform.machine().lower()


def counters_for(phases: int) -> np.ndarray:
    """Counters of a pass at zero, int64 ``[phases, 16]``; column 0 is `taken`, column 8 `done`."""
    return np.zeros((phases, _PHASE // 8), np.int64)


@compiled()
def hold(array):
    """Keeps an array in memory up to this call.

    Numba gives an array back after its last use *as an array*. One that is used by its address alone from some point on
    would be gone while work on it goes on.
    """
    return array.size


@compiled(inline="always")
def taken_of(counters, phase):
    """Address of a phase's `taken`; `counters` is the address of the array."""
    return counters + phase * _PHASE


@compiled(inline="always")
def done_of(counters, phase):
    """Address of a phase's `done`."""
    return counters + phase * _PHASE + _LINE


@intrinsic
def take(context, address):
    """Add one to a counter; gives what it was, so that every caller gets a number of its own."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.atomic_rmw("add", pointer, _LONG(1), "monotonic")

    return types.int64(types.intp), generate


@intrinsic
def add_release(context, address, number):
    """Add to a counter. Whoever sees the sum with `load_acquire` sees all that this thread wrote before."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _LONG.as_pointer())
        builder.atomic_rmw("add", pointer, arguments[1], "release")
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), generate


@intrinsic
def load_acquire(context, address):
    """What a counter stands at."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.load_atomic(pointer, "acquire", _ALIGNMENT)

    return types.int64(types.intp), generate


@intrinsic
def pause(context):
    """Tell the processor that this thread is waiting in a loop; does nothing where there is no word for that."""

    def generate(context, builder, signature, arguments):
        if _MACHINE in ("x86_64", "amd64"):
            kind = ir.FunctionType(_VOID, [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        elif _MACHINE in ("aarch64", "arm64"):
            kind = ir.FunctionType(_VOID, [_INT])
            hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.hint")
            builder.call(hint, [_INT(1)])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def yield_core(context):
    """Offer the core to another thread that is ready to run."""

    def generate(context, builder, signature, arguments):
        name = "SwitchToThread" if os.name == "nt" else "sched_yield"
        kind = ir.FunctionType(_INT, [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@compiled()
def wait(address, number):
    """Return when the counter at an address has come to a number (or beyond)."""
    spins = 0
    while load_acquire(address) < number:
        spins += 1
        if spins < _SPINS:
            pause()
        else:
            yield_core()
