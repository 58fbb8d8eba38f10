"""The drafter to be exported: a checkpoint folder in the published layout, read and checked as for drafting."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from draftproof.errors import DrafterError, RequestError
from draftproof.export.target import ExportTarget
from draftproof.models.drafters.base import TargetInfo
from draftproof.models.drafters.checkpoint import read_checkpoint
from draftproof.models.drafters.config import DrafterConfig, read_config
from draftproof.models.drafters.weights import read_tensors


@dataclass(frozen=True)
class Source:
    """A checked drafter.

    Attributes:
        folder: the checkpoint.
        config: what its ``config.json`` says.
        tensors: under the names of the published layout.
        num_target_layers: the target's depth.
        target_hidden: width of the features that ``fc`` takes, per tap.
    """

    folder: Path
    config: DrafterConfig
    tensors: dict[str, torch.Tensor]
    num_target_layers: int
    target_hidden: int


def read_source(folder: Path, target: ExportTarget | None) -> Source:
    """Read and check a drafter, against its target where one is given.

    Raises:
        DrafterError: DP301 to DP314, as at load.
        RequestError: DP532, no target is given and the checkpoint does not say how deep its target is.
    """
    if not folder.is_dir():
        raise DrafterError(
            "DP301",
            f"no drafter at {folder}: it is not a folder; name a checkpoint folder in the published layout",
        )
    info = (
        _own_word(folder)
        if target is None
        else _info(target.name, target.hidden_size, target.num_layers, target.vocab_size)
    )
    checkpoint = read_checkpoint(folder, info)
    return Source(folder, checkpoint.config, checkpoint.tensors, info.num_layers, info.hidden_size)


def _own_word(folder: Path) -> TargetInfo:
    """The target as the checkpoint itself describes it."""
    config = read_config(folder)
    if config.num_target_layers is None:
        raise RequestError(
            "DP532",
            f"{folder} does not say how many layers its target has (num_target_layers), so its taps cannot be "
            "checked; name the target with --target",
        )
    fc, taps = read_tensors(folder).get("fc.weight"), len(config.target_layer_ids)
    hidden = fc.shape[1] // taps if fc is not None and fc.ndim == 2 else config.hidden_size
    return _info("its target", hidden, config.num_target_layers, config.vocab_size)


def _info(name: str, hidden_size: int, num_layers: int, vocab_size: int) -> TargetInfo:
    """What the checks need; nothing is computed with it."""
    return TargetInfo(
        name=name,
        hidden_size=hidden_size,
        num_layers=num_layers,
        vocab_size=vocab_size,
        max_position=0,
        embedding=torch.empty(0),
        lm_head=_no_head,
        dtype=torch.float32,
        device=torch.device("cpu"),
        model_type="",
    )


def _no_head(rows: torch.Tensor) -> NoReturn:
    raise AssertionError("an export computes no logits")
