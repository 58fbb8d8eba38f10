"""From a drafter's shape to a checkpoint folder in the published layout."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftproof.errors import DrafterError
from draftproof.models.drafters.config import ACTIVATIONS, DrafterConfig, read_config
from draftproof.models.drafters.weights import check_tensors
from draftproof.train.target_weights import TargetWeights

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class DrafterShape:
    """All that a DFlash drafter's ``config.json`` says.

    Attributes:
        hidden_size, vocab_size: the target's, whose embedding and LM head it borrows.
        intermediate_size, num_layers, num_heads, num_kv_heads, head_dim: of its own layers.
        block_size: the anchor and its mask slots.
        taps: target layers whose outputs feed it, 0-based.
        mask_token_id: what stands in the mask slots.
        num_target_layers: the target's depth.
        rope: ``rope_type``, ``rope_theta`` and a scaling's parameters.
        rms_norm_eps, hidden_act, attention_bias, max_position: as in a Qwen3 config.
        window: tokens that its layers see before a slot; None for all. Windowed layers are not causal here.
        embedding_scale: factor on the raw embedding rows.
        softcap: of its logits, or None.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    taps: tuple[int, ...]
    mask_token_id: int
    num_target_layers: int
    rope: Mapping[str, Any]
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    max_position: int = 32768
    window: int | None = None
    embedding_scale: float = 1.0
    softcap: float | None = None

    def to_json(self, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
        """The content of ``config.json``."""
        own: dict[str, Any] = {"mask_token_id": self.mask_token_id, "target_layer_ids": list(self.taps)}
        if self.window is not None:
            own |= {"use_swa": True, "swa_window_size": self.window, "causal": False}
        if self.embedding_scale != 1.0:
            own["input_embedding_scale"] = self.embedding_scale
        if self.softcap is not None:
            own["final_logit_softcapping"] = self.softcap
        rope = dict(self.rope)
        plain = rope.get("rope_type", "default") == "default"
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "dtype": _DTYPES[dtype],
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": self.hidden_act,
            "attention_bias": self.attention_bias,
            "attention_dropout": 0.0,
            "layer_types": ["full_attention"] * self.num_layers,
            "max_window_layers": self.num_layers,
            "sliding_window": None,
            "use_sliding_window": False,
            "max_position_embeddings": self.max_position,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": rope["rope_theta"],
            "rope_scaling": None if plain else {k: v for k, v in rope.items() if k != "rope_theta"},
            "tie_word_embeddings": False,
            "vocab_size": self.vocab_size,
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "dflash_config": own,
        }

    def config(self) -> DrafterConfig:
        """The shape as the inference side reads it back.

        Raises:
            DrafterError: DP302, DP303, the numbers make no valid config.
        """
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(self.to_json()), encoding="utf-8")
            return read_config(Path(folder))


def shape_for(
    target: TargetWeights,
    *,
    num_layers: int = 3,
    block_size: int = 8,
    mask_token_id: int,
    taps: tuple[int, ...] | None = None,
    window: int | None = None,
) -> DrafterShape:
    """A drafter whose layers have the target's own shape, so that they can start as its last ones.

    Args:
        target: what it will draft for.
        num_layers: its depth.
        block_size: the anchor and its mask slots, at least 2.
        mask_token_id: a token that texts do not hold.
        taps: target layers, 0-based; None spreads five (fewer for a shallow target) as `even_taps` says.
        window: tokens before a slot that layers see; None for all.

    Raises:
        DrafterError: DP511, the numbers do not fit the target.
    """
    chosen = even_taps(target.num_layers) if taps is None else tuple(taps)
    check_shape(
        target.name,
        target.num_layers,
        target.vocab_size,
        num_layers=num_layers,
        block_size=block_size,
        taps=chosen,
        mask_token_id=mask_token_id,
    )
    has_bias = bool(target.layers) and all(
        f"self_attn.{part}_proj.bias" in layer for layer in target.layers for part in ("q", "k", "v")
    )
    return DrafterShape(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_layers=num_layers,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        block_size=block_size,
        taps=chosen,
        mask_token_id=mask_token_id,
        num_target_layers=target.num_layers,
        rope=target.rope,
        rms_norm_eps=target.rms_norm_eps,
        hidden_act=target.hidden_act if target.hidden_act in ACTIVATIONS else "silu",
        attention_bias=has_bias,
        max_position=min(target.max_position, 1 << 20),
        window=window,
        embedding_scale=target.embedding_scale,
        softcap=target.softcap,
    )


def even_taps(num_target_layers: int, count: int = 5) -> tuple[int, ...]:
    """`count` taps spread evenly from layer 1 to the third last, as published drafters have them; fewer for a shallow target.

    A target of fewer than 4 layers is tapped at each of its layers.
    """
    if num_target_layers < 4:
        return tuple(range(num_target_layers))
    count = min(count, num_target_layers - 3)
    if count == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(dict.fromkeys(round(1 + index * span / (count - 1)) for index in range(count)))


def write_drafter(
    folder: Path,
    shape: DrafterShape,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype = torch.bfloat16,
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write a checkpoint in the published layout, whole or not at all.

    It is written beside `folder` and renamed, so that a kill leaves either what was there before or the new one. Whatever
    `folder` held before is replaced only if it is a drafter's checkpoint or empty.

    Args:
        folder: where to; made if absent.
        shape: of the drafter.
        tensors: by their published names.
        dtype: in which they are stored.
        files: further text files by name, e.g. a card as ``README.md``.

    Raises:
        DrafterError: DP514, `folder` holds something else, or cannot be written; DP305 to DP308, the tensors do not fit.
    """
    folder = Path(folder)
    if folder.exists() and not _replaceable(folder):
        raise DrafterError(
            "DP514", f"{folder} holds something that is no drafter checkpoint; it is left as it is"
        )
    stored = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()}
    check_tensors(shape.config(), stored, shape.hidden_size)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _fill(fresh, shape, stored, dtype, files or {})
            _swap(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise DrafterError("DP514", f"{folder} cannot be written: {error}") from error
    return folder


def _fill(
    folder: Path,
    shape: DrafterShape,
    tensors: dict[str, torch.Tensor],
    dtype: torch.dtype,
    files: Mapping[str, str],
) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    content = json.dumps(shape.to_json(dtype), indent=2) + "\n"
    for name, text in {**files, "config.json": content}.items():
        (folder / name).write_text(text, encoding="utf-8")
    # A temporary folder, and what safetensors writes, are their owner's alone.
    folder.chmod(0o755)
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def _swap(fresh: Path, folder: Path) -> None:
    """Put `fresh` in the place of `folder`. Between the two renames nothing is at `folder`, but both lie beside it."""
    if not folder.exists():
        os.replace(fresh, folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    try:
        os.replace(folder, old / "was")
        os.replace(fresh, folder)
    except OSError:
        if not folder.exists() and (old / "was").exists():
            os.replace(old / "was", folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _replaceable(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()):
        return True
    try:
        names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError, AttributeError):
        return False
    return any(str(name).startswith("DFlash") for name in names)


def check_shape(
    name: str,
    num_target_layers: int,
    vocab_size: int,
    *,
    num_layers: int,
    block_size: int,
    taps: tuple[int, ...],
    mask_token_id: int | None,
) -> None:
    """Check a drafter's numbers against its target's.

    Args:
        name, num_target_layers, vocab_size: of the target.
        num_layers, block_size, taps, mask_token_id: of the drafter; the mask token may not be chosen yet.

    Raises:
        DrafterError: DP511, one of them is out of range.
    """
    outside = [tap for tap in taps if not 0 <= tap < num_target_layers]
    problem = None
    if num_layers < 1:
        problem = f"a drafter needs at least one layer, got {num_layers}"
    elif block_size < 2:
        problem = f"block_size must be at least 2 (the anchor and one mask slot), got {block_size}"
    elif not taps or outside:
        problem = f"taps are layers 0 to {num_target_layers - 1} of {name}, got {outside or list(taps)}"
    elif len(set(taps)) != len(taps):
        problem = f"each tap counts once, got {list(taps)}"
    elif mask_token_id is not None and not 0 <= mask_token_id < vocab_size:
        problem = f"the mask token must be one of 0 to {vocab_size - 1}, got {mask_token_id}"
    if problem is not None:
        raise DrafterError("DP511", problem)
