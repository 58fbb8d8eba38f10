"""Small drafters and targets for the export tests, and exports read back the way their readers read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file

from draftproof.models.drafters import write_random_checkpoint

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
HIDDEN, VOCAB, DEPTH = 64, 211, 12
"""Of the checkpoints in `GOLDEN` and of the target of the tests."""

_WHOLE = {
    "fc": "fc",
    "enc.output_norm": "hidden_norm",
    "output_norm": "norm",
    "token_embd": "embed_tokens",
    "output": "lm_head",
    "selector_predecessor": "candidate_selector.predecessor_codebook",
    "selector_successor": "candidate_selector.successor_codebook",
    "selector_hidden": "candidate_selector.hidden_projection",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_conv_proj": "attention_conv.kernel_projection",
    "ffn_conv_proj": "mlp_conv.kernel_projection",
}
_BARE = {
    "attn_sinks.weight": "self_attn.attention_sink_bias",
    "attn_conv_base": "attention_conv.base_kernel",
    "ffn_conv_base": "mlp_conv.base_kernel",
}


def drafter(
    folder: Path, top: dict[str, Any] | None = None, own: dict[str, Any] | None = None, **sizes: Any
) -> Path:
    """A random checkpoint for the tests' target; `top` and `own` are further fields of its config."""
    return write_random_checkpoint(
        folder,
        **{
            "hidden_size": HIDDEN,
            "vocab_size": VOCAB,
            "num_target_layers": DEPTH,
            "target_layer_ids": (1, 4, 8),
            "num_layers": 3,
            **sizes,
        },
        top=top,
        dflash_config=own,
    )


def add_tensors(folder: Path, **tensors: torch.Tensor) -> None:
    """Put further tensors into a checkpoint; double underscores in names stand for dots."""
    path = folder / "model.safetensors"
    more = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({**load_file(path), **more}, path, metadata={"format": "pt"})


def as_vllm_reads(exported: Path, out: Path) -> Path:
    """A `speculators` folder as a checkpoint of the published layout, by the rules with which vLLM 0.32 takes it apart.

    Each tap is one lower; one flag decides on causality in all layers; what is not listed here is lost.
    """
    given = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    second = given["speculators_model_type"] == "dflash2"
    own = {
        "mask_token_id": given["mask_token_id"],
        "target_layer_ids": [number - 1 for number in given["aux_hidden_state_layer_ids"]],
        "sample_from_anchor": given.get("sample_from_anchor", False),
        "causal": not given.get("sliding_window_non_causal", True),
    }
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        if second:
            own[key] = given[key]
    tokens = given["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    config = {
        **given["transformer_layer_config"],
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "block_size": tokens + 1,
        "dflash_config": own,
    }
    return _write(out, config, load_file(exported / "model.safetensors"))


def as_llama_cpp_reads(exported: Path, out: Path) -> Path:
    """A GGUF drafter as a checkpoint of the published layout, by the rules of llama.cpp's ``dflash`` architecture."""
    reader = GGUFReader(exported)

    def value(key: str, default: Any = None) -> Any:
        field = reader.fields.get(f"dflash.{key}")
        return default if field is None else field.contents()

    tensors = {
        published(tensor.name): _tensor(tensor)
        for tensor in reader.tensors
        if tensor.name != "rope_freqs.weight"
    }
    second = "candidate_selector.hidden_projection.weight" in tensors
    pattern = value("attention.sliding_window_pattern")
    own = {
        "mask_token_id": reader.fields["tokenizer.ggml.mask_token_id"].contents(),
        "target_layer_ids": [number - 1 for number in value("target_layers")],
        "causal": value("attention.causal", False),
        "attention_sink_bias": any(name.endswith("sink_bias") for name in tensors),
        "attention_value_scale": value("attention.value_scale", 1.0),
        "input_embedding_scale": value("embedding_scale", 1.0),
        "output_multiplier": value("logit_scale", 1.0),
        "final_logit_softcapping": value("final_logit_softcapping"),
    }
    if second:
        own |= {
            key: value(key)
            for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        }
    layers = value("block_count")
    config = {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": value("attention.key_length"),
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
        "hidden_act": value("hidden_activation", "silu"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"),
        "max_position_embeddings": value("context_length"),
        "layer_types": [
            "sliding_attention" if pattern and pattern[layer] else "full_attention" for layer in range(layers)
        ],
        "use_sliding_window": value("attention.sliding_window") is not None,
        "sliding_window": value("attention.sliding_window"),
        "block_size": value("block_size"),
        "tie_word_embeddings": "embed_tokens.weight" in tensors and "lm_head.weight" not in tensors,
        "dflash_config": own,
    }
    return _write(out, config, tensors)


def published(name: str) -> str:
    """The published name of a tensor in a GGUF drafter."""
    if not name.startswith("blk."):
        return _WHOLE[name.removesuffix(".weight")] + ".weight"
    _, layer, rest = name.split(".", 2)
    return (
        f"layers.{layer}.{_BARE[rest] if rest in _BARE else _BLOCK[rest.removesuffix('.weight')] + '.weight'}"
    )


def _tensor(stored: Any) -> torch.Tensor:
    array = dequantize(stored.data, stored.tensor_type).reshape(
        tuple(reversed([int(size) for size in stored.shape]))
    )
    return torch.from_numpy(np.array(array, dtype=np.float32))


def _write(out: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors")
    return out
