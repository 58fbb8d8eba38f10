"""Which form of a rule runs, and the way from tensors to the compiled one and back.

Compiled kernels run for logits on the CPU in float32, bfloat16 or float16 when numba can be imported; everything
else goes the plain PyTorch way. Nothing about a batch's contents or size plays a part in that choice.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch

from draftproof.verify.kernels.team import run_together
from draftproof.verify.sampling_info import Filters

Outcome = tuple[int, int, int, int]
"""(fault, level, accepted, bonus) of one sequence; for a fault at a draft token, `bonus` is that token."""

_MIN_SHARED_TOKENS = 1 << 17
"""Fewer logits than this (rows at level 0 x vocabulary) are not worth a second thread."""


@functools.cache
def _compiled() -> ModuleType | None:
    try:
        from draftproof.verify.kernels import compiled
    except ImportError:
        return None
    return compiled


def available(logits: torch.Tensor) -> bool:
    """Whether the compiled form runs for these logits."""
    return (
        logits.device.type == "cpu"
        and logits.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and _compiled() is not None
    )


def drafter_invariant(
    candidates: torch.Tensor,
    lens: torch.Tensor,
    logits: torch.Tensor,
    filters: Filters,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> list[Outcome]:
    """`verify_drafter_invariant` after its checks: candidates int64 ``[bs, n]``, vectors int64 ``[bs]``."""
    compiled, rows, settings = _require(), _rows(logits), _settings(filters)
    arguments = (rows, _array(candidates), _array(lens), *settings, _array(seeds), _array(positions))
    return _each(compiled.walk_drafter_invariant, arguments, rows)


def greedy(
    logits: torch.Tensor, first_rows: Sequence[int], drafts: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """`verify_greedy` after its checks: (accepted, bonus) of each sequence; bonus -1 where a row that was read has NaN."""
    compiled, rows = _require(), _rows(logits)
    # One flat table: for each sequence its first row, the number of its drafts, and these.
    flat: list[int] = []
    edges = [0]
    for first, mine in zip(first_rows, drafts, strict=True):
        flat.append(first)
        flat.append(len(mine))
        flat += mine
        edges.append(len(flat))
    count = len(drafts)
    table, out = np.array(flat, np.int64), np.empty((count, 2), np.int64)
    threads = min(torch.get_num_threads(), count) if count * rows.vocab >= _MIN_SHARED_TOKENS else 1
    if threads == 1:
        compiled.walk_greedy(rows, table, 0, len(flat), out, 0)
    else:
        pieces = min(count, 2 * threads)
        cuts = [count * piece // pieces for piece in range(pieces + 1)]
        queue = iter(list(pairwise(cuts)))

        def work() -> None:
            for start, stop in queue:
                compiled.walk_greedy(rows, table, edges[start], edges[stop], out, start)

        run_together(work, threads)
    return [(accepted, bonus) for accepted, bonus in out.tolist()]


def drafter_invariant_on_numbers(
    candidates: Sequence[Sequence[int]],
    logits: torch.Tensor,
    settings: tuple[Sequence[float], Sequence[int], Sequence[float], Sequence[float]],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> list[Outcome]:
    """`drafter_invariant` from Python's numbers; settings: temperatures, top-k, top-p, min-p of each sequence."""
    rows, table = _rows(logits), np.array(candidates, np.int64)
    lens = np.full(table.shape[0], table.shape[1] - 1, np.int64)
    temperatures, top_ks, top_ps, min_ps = settings
    arguments = (
        rows,
        table,
        lens,
        np.array(temperatures, np.float64),
        np.array(top_ks, np.int64),
        np.array(top_ps, np.float64),
        np.array(min_ps, np.float64),
        np.array(seeds, np.int64),
        np.array(positions, np.int64),
    )
    return _each(_require().walk_drafter_invariant, arguments, rows)


def target_only(
    candidates: torch.Tensor,
    logits: torch.Tensor,
    filters: Filters,
    coins: torch.Tensor,
    finals: torch.Tensor,
    single: float,
    acc: float,
) -> list[Outcome]:
    """The target-only rule after its checks: coins float64 ``[bs, n]``, finals float64 ``[bs]``."""
    rows = _rows(logits)
    settings = _settings(filters)
    arguments = (rows, _array(candidates), *settings, _array(coins), _array(finals), single, acc)
    return _each(_require().walk_target_only, arguments, rows)


def rejection(
    candidates: torch.Tensor,
    lens: torch.Tensor,
    logits: torch.Tensor,
    draft_probs: torch.Tensor,
    filters: Filters,
    coins: torch.Tensor,
    finals: torch.Tensor,
) -> list[Outcome]:
    """The rejection rule after its checks: draft_probs float ``[bs, n - 1, vocab]``."""
    if draft_probs.dtype not in (torch.float32, torch.float64):
        draft_probs = draft_probs.to(torch.float32)
    rows, q = _rows(logits), (_flat(draft_probs), draft_probs.stride())
    settings = _settings(filters)
    arguments = (rows, _array(candidates), _array(lens), *settings, *q, _array(coins), _array(finals))
    return _each(_require().walk_rejection, arguments, rows)


def pack(outcomes: list[Outcome]) -> tuple[torch.Tensor, torch.Tensor]:
    """(accepted int32 ``[bs]``, bonus int64 ``[bs]``) of sound outcomes."""
    accepted = torch.tensor([outcome[2] for outcome in outcomes], dtype=torch.int32)
    return accepted, torch.tensor([outcome[3] for outcome in outcomes], dtype=torch.int64)


def _require() -> ModuleType:
    module = _compiled()
    assert module is not None
    return module


_NO_HALVES, _NO_FLOATS = np.empty(0, np.uint16), np.empty(0, np.float32)


def _rows(logits: torch.Tensor) -> Any:
    """The logits' memory as `compiled.Rows`, without copying a row."""
    compiled = _require()
    row_stride, stride = logits.stride()
    if logits.dtype == torch.float32:
        base, half, kind = _flat(logits), _NO_HALVES, compiled.FLOAT32
    else:
        base, half = _NO_FLOATS, _flat(logits.view(torch.int16)).view(np.uint16)
        kind = compiled.BFLOAT16 if logits.dtype == torch.bfloat16 else compiled.FLOAT16
    return compiled.Rows(base, half, kind, row_stride, stride, logits.shape[1])


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """The memory that a strided tensor spans, as one line; its strides still address it."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_contiguous():
        whole: np.ndarray = tensor.numpy().reshape(-1)
        return whole
    if tensor.numel() == 0:
        return tensor.new_empty(0).numpy()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).numpy()


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().numpy())


def _settings(filters: Filters) -> tuple[np.ndarray, ...]:
    return tuple(_array(v) for v in (filters.temperatures, filters.top_ks, filters.top_ps, filters.min_ps))


class _Workspace(threading.local):
    """Scratch memory that a calling thread keeps for its next call.

    Some 20 bytes a token for each thread at work. Getting that much from the system and giving it back at every call
    costs as much as reading a row or two. It holds nothing between calls; results cannot depend on it.
    """

    def __init__(self) -> None:
        self.fits: tuple[int, bool] | None = None
        self.held: list[Any] = []

    def take(self, rows: Any, count: int) -> list[Any]:
        """`count` pieces of scratch memory for such rows."""
        fits = (rows.vocab, rows.kind != _require().FLOAT32 or rows.stride != 1)
        if fits != self.fits:
            self.fits, self.held = fits, []
        while len(self.held) < count:
            self.held.append(_require().scratch_for(rows))
        return self.held[:count]


_workspace = _Workspace()


def _each(walk: Callable[..., Outcome], arguments: tuple[Any, ...], rows: Any) -> list[Outcome]:
    """Walk every sequence, on as many threads as torch uses; whichever is free takes the next one.

    A sequence is one thread's work from end to end, so results do not depend on the number of threads. Kernels
    release the interpreter lock.
    """
    count = len(arguments[1])  # the candidates
    outcomes: list[Outcome | None] = [None] * count
    threads = min(torch.get_num_threads(), count) if count * rows.vocab >= _MIN_SHARED_TOKENS else 1
    # next() on a counter or a list's iterator holds the interpreter lock, so nothing is given out twice.
    queue, scratches = iter(range(count)), iter(_workspace.take(rows, threads))

    def work() -> None:
        scratch = None
        for b in queue:
            scratch = scratch or next(scratches)
            outcomes[b] = walk(*arguments, b, scratch)

    run_together(work, threads)
    return [outcome for outcome in outcomes if outcome is not None]
