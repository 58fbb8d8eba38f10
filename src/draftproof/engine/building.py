"""An engine from its parts, with the memory and the costs of this machine."""

from __future__ import annotations

import os

import torch

from draftproof.engine.core import EngineCore, EngineOptions
from draftproof.engine.costs_here import economist_for
from draftproof.engine.economics import DraftMode
from draftproof.engine.memory import bytes_per_block
from draftproof.errors import RequestError
from draftproof.models.drafters.base import Drafter
from draftproof.models.executor import TargetModel
from draftproof.models.kv import KEY_BLOCK
from draftproof.models.registry.cache import cache_root

SHARE_OF_MEMORY = 0.25
"""Of the free memory, for keys and values, where nobody says how much."""


def build_core(
    target: TargetModel, drafter: Drafter | None, mode: DraftMode, options: EngineOptions, max_model_len: int
) -> EngineCore:
    """An engine. With a drafter in mode ``auto`` the first on a machine measures its costs, which takes up to 5 seconds.

    Raises:
        RequestError: DP431, a size is out of range; DP441, not enough memory for one sequence.
    """
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        _check_size(name, getattr(options, name))
    used = None if mode.kind == "off" else drafter
    memory = options.kv_cache_memory
    if memory is None:
        memory = default_memory(target, used, options.max_num_seqs, max_model_len)
    else:
        _check_size("kv_cache_memory", memory)
    folder = cache_root() / "costs"
    economist = economist_for(target, used, mode, options.max_num_seqs, folder)
    return EngineCore(target, used, economist, options, memory, max_model_len)


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError("DP431", f"{name} must be a whole number >= 1, got {value!r}")


def default_memory(
    target: TargetModel, drafter: Drafter | None, max_num_seqs: int, max_model_len: int
) -> int:
    """Bytes for keys and values: full contexts for everyone, as far as a share of the free memory goes; at least one."""
    context = -(-max_model_len // KEY_BLOCK) * bytes_per_block(target, drafter)
    return max(context, min(max_num_seqs * context, int(SHARE_OF_MEMORY * _free_memory(target.device))))


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        return 8 << 30
