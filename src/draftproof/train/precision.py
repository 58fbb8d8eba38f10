"""In which precision a trainer's passes run on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

PRECISIONS = ("auto", "bfloat16", "float32")


def precision_on(device: torch.device, precision: str) -> str:
    """``"bfloat16"`` or ``"float32"``: what ``"auto"`` means on a device, or what was asked for.

    Processors without products of bfloat16 imitate them: on one with AVX2 a step took thirteen times as long as in float32.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        quick = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        quick = _cpu_has_bfloat16()
    else:
        quick = True
    return "bfloat16" if quick else "float32"


def _cpu_has_bfloat16() -> bool:
    """oneDNN's word: it would also take AVX512 without bfloat16, by way of float32, so x86 has to name its instructions."""
    named = _capabilities()
    if not _onednn_takes_bfloat16():
        return False
    if named.get("architecture") not in ("x86_64", "AMD64"):
        return True
    return bool(named.get("avx512_bf16") or named.get("amx_bf16"))


def _onednn_takes_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _capabilities() -> Mapping[str, Any]:
    """The processor's abilities by PyTorch's names; none where it is too old to tell."""
    ask: Callable[[], Mapping[str, Any]] | None = getattr(torch.cpu, "get_capabilities", None)
    return {} if ask is None else ask()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 products where `precision_on` says so; weights, gradients and optimizer stay float32."""
    if precision_on(device, precision) == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
