"""Row-invariant attention, compiled: from tensors to machine code.

Runs on the CPU for keys and values in bfloat16 or float32 when numba can be imported. Which form a target uses is settled
when it is loaded; nothing about a pass plays a part in that. `attention_reference` is the plain form.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from draftproof.models.kv import LayerShape
from draftproof.verify.kernels.team import run_together

if TYPE_CHECKING:
    from draftproof.models.attention_pass import PagePlan
    from draftproof.models.attention_reference import AttentionRule

_KINDS: dict[torch.dtype, Any] = {torch.float32: np.float32(0), torch.bfloat16: np.uint16(0)}
_TILE_ROWS = 32
"""Query rows (times heads of a group) of one task: enough to use a key block well, few enough to share out."""
_MIN_SHARED_WORK = 1 << 22
"""Fewer multiplications than this are not worth a second thread."""


@functools.cache
def _compiled() -> ModuleType | None:
    try:
        from draftproof.models.kernels import paged
    except ImportError:
        return None
    return paged


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the compiled form runs for keys and values of this dtype on this device."""
    return device.type == "cpu" and dtype in _KINDS and _compiled() is not None


def cut_tasks(spans: np.ndarray, group: int, kv_heads: int, threads: int) -> np.ndarray:
    """Pieces of work: runs of query rows of one segment, int64 ``[n, 3]`` (span, first, end), the longest first.

    How the work is cut makes no difference to any row.
    """
    rows = max(1, _TILE_ROWS // group)
    if threads > 1 and int((-(-spans[:, 1] // rows)).sum()) * kv_heads < 2 * threads:
        rows = -(-rows // 2)
    tasks = [
        (start + count, index, first, min(first + rows, count))
        for index, (_, count, start, _) in enumerate(spans.tolist())
        for first in range(0, count, rows)
    ]
    tasks.reverse()  # the last rows of a segment see the most keys
    return np.array([task[1:] for task in tasks], np.int64)


def store(plan: PagePlan, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write the pass's `keys` and `values` ``[kv_heads, rows, dim]`` to the plan's pages of `layer`."""
    pages, shape = plan.pages, _shape(plan, layer)
    own_keys, own_values = pages.layer(layer)
    keys, values = _side_by_side(keys.to(pages.dtype)), _side_by_side(values.to(pages.dtype))
    _require().store(
        plan.spans,
        plan.tables,
        keys.data_ptr(),
        keys.stride(0),
        keys.stride(1),
        values.data_ptr(),
        values.stride(0),
        values.stride(1),
        own_keys.data_ptr(),
        own_values.data_ptr(),
        own_keys.stride(0),
        shape.kv_heads,
        shape.key_dim,
        shape.key_width,
        shape.value_dim,
        shape.value_width,
        _KINDS[pages.dtype],
    )


def attend(plan: PagePlan, layer: int, query: torch.Tensor, rule: AttentionRule, out: torch.Tensor) -> None:
    """Fill the plan's rows of `out` ``[rows, heads, value_dim]`` from `query` ``[heads, rows, dim]`` and the plan's pages."""
    pages, shape = plan.pages, _shape(plan, layer)
    keys, values = pages.layer(layer)
    threads = torch.get_num_threads()
    group = query.shape[0] // shape.kv_heads
    tasks = plan.tasks(group, shape.kv_heads, threads)
    query = _side_by_side(query)
    sinks = None if rule.sinks is None else rule.sinks.float().contiguous()
    arguments = (
        np.zeros(1, np.int64),
        tasks,
        plan.spans,
        plan.tables,
        query.data_ptr(),
        query.stride(0),
        query.stride(1),
        out.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        keys.stride(0),
        shape.kv_heads,
        group,
        shape.key_dim,
        shape.key_width,
        shape.value_dim,
        shape.value_width,
        float(rule.scaling),
        rule.window or 0,
        float(rule.softcap or 0.0),
        0 if sinks is None else sinks.data_ptr(),
        _KINDS[query.dtype],
        _KINDS[pages.dtype],
    )
    work = plan.pairs * query.shape[0] * (shape.key_width + shape.value_width)
    if threads == 1 or work < _MIN_SHARED_WORK:
        _require().attend(*arguments)
    else:
        run_together(lambda: _require().attend(*arguments), min(threads, len(tasks) * shape.kv_heads))


def _shape(plan: PagePlan, layer: int) -> LayerShape:
    shape = plan.pages.shapes[layer]
    assert shape is not None
    return shape


def _side_by_side(rows: torch.Tensor) -> torch.Tensor:
    """The same tensor with the entries of a row next to one another."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _require() -> ModuleType:
    module = _compiled()
    assert module is not None
    return module
