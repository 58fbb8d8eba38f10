"""A drafter as one GGUF file of the architecture ``dflash``, which llama.cpp loads beside its target.

Taps are counted one higher than in the published layout: there a layer's number means the state *entering* it. RoPE
of any kind is written as what it comes to: a factor per frequency (``rope_freqs``) and one on cosine and sine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import quantize

from draftproof.errors import RequestError
from draftproof.export.carry import all_causal, window
from draftproof.export.gguf_names import gguf_name
from draftproof.export.gguf_vocabulary import Entry, vocabulary
from draftproof.export.source import Source
from draftproof.export.target import ExportTarget
from draftproof.models.drafters.rope import inverse_frequencies

ARCHITECTURE = "dflash"
DTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
"""How matrices may be stored; `auto` keeps what the checkpoint has. Everything else is float32."""
_TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
_STORED = {torch.bfloat16: "bf16", torch.float16: "f16"}
_Q8_BLOCK = 32


def write_gguf(path: Path, source: Source, target: ExportTarget, dtype: str) -> str:
    """Write the file; returns the type in which the matrices lie in it.

    Args:
        path: where to; written over.
        source: a drafter that `carry.check_gguf` has let pass.
        target: whose vocabulary goes with it.
        dtype: one of `DTYPES`.

    Raises:
        RequestError: DP533, the target's tokenizer; DP535, no such `dtype`, or these numbers do not fit it.
    """
    kept = _kept(source, dtype)
    words = vocabulary(target, source.config.vocab_size, source.config.mask_token_id)
    writer = GGUFWriter(path, ARCHITECTURE)
    try:
        _add_model(writer, source, kept)
        for entry in words:
            _add_entry(writer, entry)
        for name, array, kind in _arrays(source, kept):
            writer.add_tensor(name, array, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return kept


def _kept(source: Source, dtype: str) -> str:
    if dtype not in DTYPES:
        raise RequestError("DP535", f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if dtype == "auto":
        return _STORED.get(source.tensors["fc.weight"].dtype, "f32")
    return dtype


def _add_model(writer: Any, source: Source, kept: str) -> None:
    config, width = source.config, window(source)
    writer.add_type("model")
    writer.add_name(f"{source.folder.resolve().name} (DFlash drafter)")
    writer.add_file_type(_TYPES[kept][1])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.rope.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_vocab_size(config.vocab_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    _, factor = inverse_frequencies(config.rope)
    if factor != 1.0:
        writer.add_rope_scaling_attn_factors(factor)
    if width is not None:
        writer.add_sliding_window(width)
        writer.add_sliding_window_pattern([layer.window is not None for layer in config.layers])
    if all_causal(source):
        writer.add_causal_attention(True)
    _add_drafting(writer, source)


def _add_drafting(writer: Any, source: Source) -> None:
    """The keys that only drafters have, and the factors that only some of them need."""
    config = source.config
    writer.add_uint32(f"{ARCHITECTURE}.block_size", config.block_size)
    writer.add_array(f"{ARCHITECTURE}.target_layers", [tap + 1 for tap in config.target_layer_ids])
    if config.hidden_act not in ("silu", "swish"):
        writer.add_string(f"{ARCHITECTURE}.hidden_activation", config.hidden_act)
    if config.value_scale != 1.0:
        writer.add_float32(f"{ARCHITECTURE}.attention.value_scale", config.value_scale)
    if config.embedding_scale != 1.0:
        writer.add_embedding_scale(config.embedding_scale)
    if config.output_multiplier != 1.0:
        writer.add_logit_scale(config.output_multiplier)
    if config.softcap is not None:
        writer.add_final_logit_softcapping(config.softcap)
    if config.conv is not None and config.selector is not None:
        writer.add_uint32(f"{ARCHITECTURE}.conv_kernel_size", config.conv.kernel_size)
        writer.add_uint32(f"{ARCHITECTURE}.conv_group_size", config.conv.group_size)
        writer.add_uint32(f"{ARCHITECTURE}.selector_rank", config.selector.rank)
        writer.add_uint32(f"{ARCHITECTURE}.selector_top_k", config.selector.top_k)


def _add_entry(writer: Any, entry: Entry) -> None:
    if entry.kind is not None:
        writer.add_key_value(
            entry.key,
            entry.value,
            GGUFValueType(entry.kind),
            None if entry.element is None else GGUFValueType(entry.element),
        )
    elif isinstance(entry.value, bool):
        writer.add_bool(entry.key, entry.value)
    elif isinstance(entry.value, int):
        writer.add_uint32(entry.key, entry.value)
    elif isinstance(entry.value, str):
        writer.add_string(entry.key, entry.value)
    else:
        writer.add_array(entry.key, entry.value)


def _arrays(source: Source, kept: str) -> list[tuple[str, np.ndarray, GGMLQuantizationType]]:
    """Name, data and type of every tensor of the file."""
    rows = []
    for name, tensor in source.tensors.items():
        array = np.ascontiguousarray(tensor.to(torch.float32).numpy())
        is_matrix = array.ndim == 2
        rows.append((gguf_name(name), *_stored(name, array, kept if is_matrix else "f32")))
    if source.config.rope.kind != "default":
        rows.append(("rope_freqs.weight", _frequency_factors(source), GGMLQuantizationType.F32))
    return rows


def _stored(name: str, array: np.ndarray, kept: str) -> tuple[np.ndarray, GGMLQuantizationType]:
    kind = _TYPES[kept][0]
    if kept == "f32":
        return array, kind
    if kept == "q8_0" and array.shape[1] % _Q8_BLOCK:
        raise RequestError(
            "DP535",
            f"{name} has rows of {array.shape[1]} numbers, and q8_0 takes them in groups of {_Q8_BLOCK}",
        )
    if kept == "f16" and float(np.abs(array).max()) > float(np.finfo(np.float16).max):
        raise RequestError("DP535", f"{name} holds numbers too large for f16; take bf16")
    return quantize(array, kind), kind


def _frequency_factors(source: Source) -> np.ndarray:
    """What llama.cpp divides each unscaled frequency by, float32 ``[head_dim / 2]``."""
    rope = source.config.rope
    scaled, _ = inverse_frequencies(rope)
    exponents = torch.arange(0, rope.head_dim, 2, dtype=torch.float64) / rope.head_dim
    plain = 1.0 / (rope.theta**exponents)
    return (plain / scaled.double()).float().numpy()
