"""From what the user named to a drafter that fits the target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from draftproof.errors import DrafterError
from draftproof.models.drafters.base import Drafter, TargetInfo
from draftproof.models.drafters.checkpoint import read_checkpoint
from draftproof.models.drafters.dflash import DFlashDrafter
from draftproof.models.drafters.ngram import NgramDrafter
from draftproof.models.kernels.packing import Precision, available

if TYPE_CHECKING:
    from draftproof.models.drafters.fused_weights import Precisions

_NGRAM_BLOCK = 8


def load_drafter(
    spec: str | Path,
    target: TargetInfo,
    block_size: int | None = None,
    dtype: torch.dtype | None = None,
    *,
    executor: Literal["auto", "torch"] = "auto",
    precisions: Precisions | None = None,
) -> Drafter:
    """Load a drafter for a target.

    Args:
        spec: ``"ngram"``, or a local folder with a DFlash or DFlash 2 checkpoint (``"./ngram"`` for a folder
            of that name).
        target: what it is to draft for.
        block_size: anchor plus draft tokens. None means the checkpoint's own, or 8 for ``"ngram"``. A
            checkpoint's block may be shortened (it was trained on its own length, so acceptance may suffer),
            never lengthened.
        dtype: of its context's keys and values; None means the target's. In torch it computes in it, too.
        executor: "auto" compiles its passes where that is possible (plain DFlash on a CPU), "torch" never does.
        precisions: of the products of compiled passes; None for the fastest whose acceptance is as good, or float32 where
            `dtype` is.

    Raises:
        DrafterError: DP301 to DP315, see `docs/drafters.md`.
    """
    if block_size is not None and block_size < 2:
        raise DrafterError(
            "DP315", f"block_size must be at least 2 (the anchor and one draft token), got {block_size}"
        )
    if spec == "ngram":
        return NgramDrafter(target.device, block_size or _NGRAM_BLOCK)
    folder = Path(spec)
    if not folder.is_dir():
        raise DrafterError(
            "DP301", f"no drafter at {folder}: it is not a folder; name a checkpoint folder or 'ngram'"
        )
    checkpoint = read_checkpoint(folder, target)
    trained = checkpoint.config.block_size
    if block_size is not None and block_size > trained:
        raise DrafterError(
            "DP315",
            f"block_size {block_size} exceeds the {trained} that {folder} was trained on; use at most that",
        )
    block, computed = block_size or trained, dtype or target.dtype
    if executor == "auto" and available(Precision.FLOAT32, target.device):
        from draftproof.models.drafters.fused import FusedDFlashDrafter, fused_supported

        if fused_supported(checkpoint.config, target, computed):
            return FusedDFlashDrafter(checkpoint, target, block, computed, precisions)
    return DFlashDrafter(checkpoint, target, block, computed)
