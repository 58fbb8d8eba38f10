"""Entering a team of threads from compiled code, without Python in any of them.

A program is a compiled function of an address, under which it finds all it needs, and of two kinds (see `packing.KINDS`).
`on_team` makes OpenMP's own entry call it in every thread of the team that torch keeps; they share the work by `phases`.
So a pass costs one call from Python, and no thread waits for Python's lock.
"""

# The types of compiled functions are numba's business.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import ir  # type: ignore[import-not-found,import-untyped,unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from draftproof.verify.kernels import team

_VOID, _INT, _LONG = ir.VoidType(), ir.IntType(32), ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()


def on_team(program: Any) -> Any:
    """Makes the function that runs a program in every thread of a team.

    Args:
        program: compiled, raises nothing.
    """

    @intrinsic
    def run(context, enter, threads, address, kind, other):
        """Run ``program(address, kind, other)`` in a team of `threads`.

        `enter` is the address of OpenMP's `GOMP_parallel`; 0 to run in this thread alone.
        """
        given = (types.int64, kind, other)
        program.compile(given)
        result = program.overloads[given]

        def generate(context, builder, signature, arguments):
            enter, threads, address, _, _ = arguments
            context.add_linking_libs([result.library])
            member = _member(context, builder.module, result, given)
            data = builder.inttoptr(address, _POINTER)
            alone = builder.icmp_signed("==", enter, _LONG(0))
            with builder.if_else(alone) as (here, together):
                with here:
                    builder.call(member, [data])
                with together:
                    kind = ir.FunctionType(_VOID, [member.type, _POINTER, _INT, _INT]).as_pointer()
                    size = builder.trunc(threads, _INT)
                    builder.call(builder.inttoptr(enter, kind), [member, data, size, _INT(0)])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, kind, other), generate

    return run


def _member(context: Any, module: Any, result: Any, given: tuple[Any, ...]) -> Any:
    """What OpenMP calls: ``void (*)(void *)``."""
    function = ir.Function(module, ir.FunctionType(_VOID, [_POINTER]), module.get_unique_name("member"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    kinds = [cgutils.get_null_value(context.get_value_type(kind)) for kind in given[1:]]
    address = builder.ptrtoint(function.args[0], _LONG)
    context.call_internal_no_propagate(builder, result.fndesc, result.signature, [address, *kinds])
    builder.ret_void()
    return function


@functools.cache
def _gnu_openmp() -> int:
    """Address of `GOMP_parallel`, or 0."""
    enter = team._gnu_openmp()
    return 0 if enter is None else ctypes.cast(enter, ctypes.c_void_p).value or 0


def launch(start: Callable[..., Any], address: int, kind: Any, other: Any, wanted: int) -> None:
    """Run a program on the threads that torch uses.

    Args:
        start: a compiled ``start(enter, threads, address, kind, other)`` that calls what `on_team` made of its program.
        address, kind, other: the program's arguments.
        wanted: how many threads there is work for.
    """
    threads = torch.get_num_threads()
    if min(threads, wanted) <= 1:
        start(0, 1, address, kind, other)
        return
    enter = _gnu_openmp()
    if enter:  # the whole team: a smaller one would make the library dismiss the others
        start(enter, threads, address, kind, other)
    else:
        team.run_together(lambda: start(0, 1, address, kind, other), threads)
