"""Row invariance for what a model's own code calls directly: `F.linear` on a router's weight, `sigmoid` of a gate.

Swapping modules does not reach such calls. A torch function mode does, at a microsecond or two for every operator of the
pass, so it is switched on only for models that were seen, at load time, to make such calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from draftproof.models.elementwise import elementwise
from draftproof.models.linear import tiled_linear

_ELEMENTWISE: frozenset[Callable[..., Any]] = frozenset(
    {torch.exp, torch.exp2, torch.sigmoid, torch.tanh, torch.special.expit, functional.silu, functional.gelu}
    | {torch.Tensor.exp, torch.Tensor.sigmoid, torch.Tensor.tanh, functional.sigmoid, functional.tanh}
    | {functional.softplus, functional.mish, functional.elu, functional.celu, functional.selu}
)
_PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    {torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__}
)
_CAUGHT = _ELEMENTWISE | _PRODUCTS | {functional.linear}
_OURS = "draftproof.models."
_CALLER = "draftproof.models.target"


class RowInvariantFunctions(TorchFunctionMode):
    """While active, products with a matrix and elementwise functions are computed row-invariantly.

    A mode is off inside its own handler, so what the handler calls is not caught again.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        options = dict(kwargs or {})
        if function is functional.linear:
            return tiled_linear(*args, **options)
        if function in _PRODUCTS and _is_row_product(args, options):
            return tiled_linear(args[0], args[1].t())
        if function in _ELEMENTWISE and args and "out" not in options:
            return elementwise(lambda piece: function(piece, *args[1:], **options), args[0])
        return function(*args, **options)


def _is_row_product(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Rows times one matrix; products of batches are left alone."""
    return len(args) == 2 and not options and args[0].dim() >= 2 and args[1].dim() == 2


class OwnCalls(TorchFunctionMode):
    """Finds out whether a model's own code calls what `RowInvariantFunctions` would catch. Slow; for one probing pass."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        self.found = self.found or (function in _CAUGHT and not _called_by_us())
        return function(*args, **(kwargs or {}))


def _called_by_us() -> bool:
    """Whether one of draftproof's own operators stands between the target and this call."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != _CALLER:
        if frame.f_globals.get("__name__", "").startswith(_OURS):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
