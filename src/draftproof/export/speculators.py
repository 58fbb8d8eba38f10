"""The `speculators` format: a folder that vLLM and the speculators library read.

Two things differ from the published layout although nothing tells them apart. Taps are counted one higher: there a
layer's number means the state *entering* it. And whether slots see later slots is said by `sliding_window_non_causal`
alone: the library's default (False) and vLLM's (True) disagree, and vLLM takes the flag for all layers, windowed or
not; so it is always written. vLLM hands the tapped states over by layer number, not in the order of the list, so
the taps are written in ascending order and the columns of ``fc`` with them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftproof.export.carry import all_causal, window
from draftproof.export.source import Source
from draftproof.export.target import ExportTarget

FORMAT_VERSION = "0.9.0"
"""The release of the speculators library whose config this writes."""
_CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")


def write_speculators(
    folder: Path, source: Source, target: ExportTarget | None, verifier: str | None
) -> None:
    """Write ``config.json`` and ``model.safetensors`` into an existing, empty folder.

    Args:
        folder: where to.
        source: a drafter that `carry.check_speculators` has let pass.
        target: for the verifier's architectures.
        verifier: hub id or path that the config names as the verifier; None leaves it open.
    """
    save_file(speculators_tensors(source), folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(speculators_config(source, target, verifier), indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def speculators_config(source: Source, target: ExportTarget | None, verifier: str | None) -> dict[str, Any]:
    """The content of ``config.json``."""
    config = source.config
    second = config.algorithm == "dflash2"
    written: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "speculators_model_type": config.algorithm,
        "speculators_version": FORMAT_VERSION,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in sorted(config.target_layer_ids)],
        "block_size": config.block_size,
        "draft_vocab_size": config.vocab_size,
        "dtype": str(source.tensors["fc.weight"].dtype).removeprefix("torch."),
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": False,
        "sliding_window_non_causal": not all_causal(source),
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": _layer_config(source),
        "speculators_config": {
            "algorithm": config.algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": config.block_size - 1,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {
                "name_or_path": verifier,
                "architectures": list(target.architectures) if target is not None else [],
            },
        },
    }
    if config.conv is not None and config.selector is not None:
        written |= {
            "conv_kernel_size": config.conv.kernel_size,
            "conv_group_size": config.conv.group_size,
            "selector_rank": config.selector.rank,
            "selector_top_k": config.selector.top_k,
        }
    return written


def _layer_config(source: Source) -> dict[str, Any]:
    config, width = source.config, window(source)
    return {
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "hidden_act": "silu" if config.hidden_act == "swish" else config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "attention_bias": config.attention_bias,
        "attention_dropout": 0.0,
        "max_position_embeddings": config.rope.max_position,
        "rope_parameters": {
            "rope_type": config.rope.kind,
            "rope_theta": config.rope.theta,
            **dict(config.rope.scaling),
        },
        "layer_types": [
            "full_attention" if layer.window is None else "sliding_attention" for layer in config.layers
        ],
        "use_sliding_window": width is not None,
        "sliding_window": width,
        "max_window_layers": config.num_layers,
        "tie_word_embeddings": False,
    }


def speculators_tensors(source: Source) -> dict[str, torch.Tensor]:
    """The tensors by name: those of the published layout, ``fc``'s columns in the order of ascending taps."""
    taps = source.config.target_layer_ids
    order = sorted(range(len(taps)), key=taps.__getitem__)
    tensors = {_plain(name): tensor.contiguous() for name, tensor in source.tensors.items()}
    columns = tensors["fc.weight"].view(source.config.hidden_size, len(taps), source.target_hidden)
    tensors["fc.weight"] = columns[:, order].reshape(source.config.hidden_size, -1).contiguous()
    return tensors


def _plain(name: str) -> str:
    """The codebooks are bare parameters there, without ``.weight``."""
    return name.removesuffix(".weight") if name.startswith(_CODEBOOKS) else name
