"""A published drafter checkpoint, read and checked against the target it is to draft for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from draftproof.errors import DrafterError
from draftproof.models.drafters.base import TargetInfo
from draftproof.models.drafters.config import DrafterConfig, read_config
from draftproof.models.drafters.vocabulary import read_vocabulary
from draftproof.models.drafters.weights import check_tensors, read_tensors


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint's folder holds.

    Attributes:
        config: resolved.
        tensors: by the names of the published layout, no ``model.`` prefix.
        vocabulary: the token ids it proposes, int64 ``[n]``, ascending; None: all.
    """

    config: DrafterConfig
    tensors: dict[str, torch.Tensor]
    vocabulary: torch.Tensor | None = None


def read_checkpoint(folder: Path, target: TargetInfo) -> Checkpoint:
    """Read a checkpoint folder and make sure that it fits the target.

    Raises:
        DrafterError: DP301 to DP314 and DP319: see `docs/drafters.md` for what is checked.
    """
    config = read_config(folder, num_target_layers=target.num_layers)
    _check_layers(config, target)
    _check_vocabulary(config, target)
    tensors = read_tensors(folder)
    _check_widths(config, tensors, target)
    check_tensors(config, tensors, target.hidden_size)
    return Checkpoint(config, tensors, read_vocabulary(folder, target.vocab_size))


def _check_layers(config: DrafterConfig, target: TargetInfo) -> None:
    if config.num_target_layers not in (None, target.num_layers):
        raise DrafterError(
            "DP310",
            f"{config.source} was trained for a target of {config.num_target_layers} layers, "
            f"but {target.name} has {target.num_layers}",
        )
    outside = [tap for tap in config.target_layer_ids if not 0 <= tap < target.num_layers]
    if outside:
        raise DrafterError(
            "DP309",
            f"{config.source} taps the target's layers {list(config.target_layer_ids)}, "
            f"but {target.name} has layers 0 to {target.num_layers - 1}: {outside} do not exist",
        )


def _check_vocabulary(config: DrafterConfig, target: TargetInfo) -> None:
    if config.vocab_size != target.vocab_size:
        raise DrafterError(
            "DP312",
            f"{config.source} has a vocabulary of {config.vocab_size} tokens, "
            f"but {target.name} has {target.vocab_size}",
        )
    if config.mask_token_id >= target.vocab_size:
        raise DrafterError(
            "DP313",
            f"{config.source} uses token {config.mask_token_id} as its mask, "
            f"but {target.name} has only tokens 0 to {target.vocab_size - 1}",
        )


def _check_widths(config: DrafterConfig, tensors: dict[str, torch.Tensor], target: TargetInfo) -> None:
    """Hidden sizes: what the drafter borrows must be as wide as itself, what it is fed as wide as `fc`
    takes."""
    own_embedding = "embed_tokens.weight" in tensors
    own_head = "lm_head.weight" in tensors or (own_embedding and config.tie_word_embeddings)
    if config.hidden_size != target.hidden_size and not (own_embedding and own_head):
        raise DrafterError(
            "DP311",
            f"{config.source} has hidden size {config.hidden_size} and borrows the target's embedding "
            f"or LM head, but {target.name} has hidden size {target.hidden_size}",
        )
    taps, fc = len(config.target_layer_ids), tensors.get("fc.weight")
    if fc is not None and fc.ndim == 2 and fc.shape[1] != taps * target.hidden_size:
        raise DrafterError(
            "DP311",
            f"{config.source}: fc.weight takes {fc.shape[1]} features, but {taps} taps of {target.name} "
            f"(hidden size {target.hidden_size}) give {taps * target.hidden_size}",
        )
