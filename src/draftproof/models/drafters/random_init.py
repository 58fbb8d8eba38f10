"""Write a checkpoint with random weights: a drafter that is nearly always wrong, to test losslessness with.

Its layout is the published one, so it passes through the same reading and checking as a trained one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftproof.models.drafters.config import read_config
from draftproof.models.drafters.weights import expected_shapes


def write_random_checkpoint(
    folder: Path,
    *,
    hidden_size: int,
    vocab_size: int,
    num_target_layers: int,
    target_layer_ids: tuple[int, ...] | None = None,
    block_size: int = 8,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    intermediate_size: int = 64,
    mask_token_id: int | None = None,
    dflash2: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    top: Mapping[str, Any] | None = None,
    dflash_config: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``config.json`` and ``model.safetensors`` into `folder` (made if absent) and return it.

    Args:
        hidden_size, vocab_size, num_target_layers: the target's.
        target_layer_ids: the taps; None leaves them to the layout's default.
        mask_token_id: None takes the last token of the vocabulary.
        dflash2: with convolutions and a candidate selector.
        top, dflash_config: further fields of ``config.json`` and of its ``dflash_config``, winning over the
            rest.

    Raises:
        DrafterError: the fields given do not make a valid config.
    """
    own: dict[str, Any] = {"mask_token_id": vocab_size - 1 if mask_token_id is None else mask_token_id}
    if target_layer_ids is not None:
        own["target_layer_ids"] = list(target_layer_ids)
    if dflash2:
        group = max(g for g in (16, 8, 4, 2, 1) if hidden_size % g == 0)
        own |= {
            "conv_kernel_size": 3,
            "conv_group_size": group,
            "selector_rank": 8,
            "selector_top_k": min(6, vocab_size),
        }
    config: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if dflash2 else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "block_size": block_size,
        "num_target_layers": num_target_layers,
        **(top or {}),
        "dflash_config": {**own, **(dflash_config or {})},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    shapes = expected_shapes(read_config(folder), hidden_size)
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(name, shape, generator).to(dtype) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Scaled so that activations keep their size from layer to layer: gains near 1, matrices by fan-in."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return 1.0 + 0.1 * noise
    if name.endswith("base_kernel"):
        noise = 0.1 * noise
        noise[:, 0] += 1.0
        return noise
    if len(shape) == 1 or "codebook" in name:
        return noise
    return noise * shape[-1] ** -0.5
