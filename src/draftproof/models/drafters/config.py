"""A published drafter's ``config.json``, resolved into one frozen dataclass.

Two rules hold throughout. A field has one meaning here, decided once, so that no later code looks at the raw
file. And a field that asks for something this package does not do is refused, never skipped: a drafter that
runs with a part missing still drafts, only badly, and nothing else would tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftproof.errors import DrafterError
from draftproof.models.drafters.fields import Fields
from draftproof.models.drafters.rope import RopeSettings, read_rope

ALGORITHMS: dict[str, Literal["dflash", "dflash2"]] = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash2",
}
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")

# Keys of `dflash_config` that are read below.
_DFLASH_KEYS = frozenset(
    (
        *("target_layer_ids", "mask_token_id", "block_size", "causal", "use_swa", "swa_window_size"),
        *("attention_sink_bias", "attention_value_scale", "input_embedding_scale", "output_multiplier"),
        *(
            "final_logit_softcapping",
            "conv_kernel_size",
            "conv_group_size",
            "selector_rank",
            "selector_top_k",
        ),
    )
)
# Keys other trainers and servers write, with the one value that means what this package does anyway.
_DFLASH_NEUTRAL: dict[str, Any] = {
    "sample_from_anchor": False,
    "use_aux_hidden_state": True,
    "projector_type": "dflash",
    "shift_label": False,
    "use_confidence_head": False,
}
# Top-level keys of other architectures that would change the computation, with their neutral value.
_TOP_NEUTRAL: dict[str, Any] = {
    "quantization_config": None,
    "compression_config": None,
    "fc_norm": False,
    "mlp_bias": False,
    "use_qk_norm": True,
    "num_experts": 0,
    "partial_rotary_factor": 1.0,
    "attn_logit_softcapping": None,
    "query_pre_attn_scalar": None,
    "attention_multiplier": None,
    "residual_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
}


@dataclass(frozen=True)
class LayerAttention:
    """How one layer's block slots attend.

    Attributes:
        window: slot at position q sees keys k with ``q - k < window`` (and ``k - q < window`` where not
            causal); None means no limit.
        causal: whether a slot is kept from seeing later slots of its block.
    """

    window: int | None
    causal: bool


@dataclass(frozen=True)
class ConvSettings:
    """DFlash 2's convolution: taps per channel, and channels that share one dynamic kernel."""

    kernel_size: int
    group_size: int


@dataclass(frozen=True)
class SelectorSettings:
    """DFlash 2's candidate selector: rank of its codebooks, and candidates considered per slot."""

    rank: int
    top_k: int


@dataclass(frozen=True)
class DrafterConfig:
    """Everything a checkpoint's config says, with defaults applied (design section 4).

    Attributes:
        source: the folder it came from, for messages.
        algorithm: ``"dflash"`` or ``"dflash2"``.
        block_size: anchor plus mask slots of the longest block it was trained on.
        num_target_layers: decoder layers of the target it was trained for; None when the file does not say.
        target_layer_ids: the taps, 0-based, in the order in which `fc` takes them.
        layers: one entry a draft layer.
        value_scale: factor on the values of context and block.
        embedding_scale: factor on the raw embedding rows that enter the block.
        output_multiplier: factor on the LM head's output, before `softcap`.
        softcap: ``c`` of ``c * tanh(logits / c)``, or None.
    """

    source: str
    algorithm: Literal["dflash", "dflash2"]
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    hidden_act: str
    attention_bias: bool
    tie_word_embeddings: bool
    block_size: int
    num_target_layers: int | None
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    rope: RopeSettings
    layers: tuple[LayerAttention, ...]
    attention_sinks: bool
    value_scale: float
    embedding_scale: float
    output_multiplier: float
    softcap: float | None
    conv: ConvSettings | None
    selector: SelectorSettings | None


def read_config(folder: Path, num_target_layers: int | None = None) -> DrafterConfig:
    """Read ``config.json`` of a checkpoint folder.

    Args:
        folder: a local checkpoint folder.
        num_target_layers: the actual target's depth, used for the default taps when the file names neither
            taps nor depth.

    Raises:
        DrafterError: DP301 no such file, DP302 unreadable or contradictory, DP303 asks for something
            unsupported, DP313 no mask token, DP314 no RoPE base.
    """
    raw = _read_json(folder)
    algorithm = _algorithm(raw, folder)
    top = Fields(raw, f"{folder}/config.json")
    section = raw.get("dflash_config") or {}
    if not isinstance(section, Mapping):
        raise top.invalid("dflash_config must be an object")
    own = Fields(section, f"{folder}/config.json: dflash_config")
    _refuse_unsupported(top, own)
    # What belongs to `dflash_config` may stand at the top level instead; where both speak, `dflash_config`
    # wins.
    return _resolve(algorithm, folder, top, own.or_else(top), num_target_layers)


def default_taps(num_layers: int, num_target_layers: int) -> tuple[int, ...]:
    """The taps of a checkpoint that names none, from its own depth and its target's (at least 4 layers).

    Source: design section 4, the published layout's rule: ``[n // 2]`` for one draft layer, else layers
    spread evenly from 1 to n - 3, rounded as Python's `round` does (half to even).
    """
    if num_layers == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + i * span / (num_layers - 1)) for i in range(num_layers))


def _read_json(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise DrafterError("DP301", f"no drafter at {folder}: it has no config.json")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DrafterError("DP302", f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise DrafterError("DP302", f"{path} must hold a JSON object, got {type(raw).__name__}")
    return raw


def _algorithm(raw: Mapping[str, Any], folder: Path) -> Literal["dflash", "dflash2"]:
    names = raw.get("architectures") or []
    known = [ALGORITHMS[name] for name in names if name in ALGORITHMS] if isinstance(names, list) else []
    if not known:
        raise DrafterError(
            "DP303",
            f"{folder}/config.json names the architecture {names or 'nothing'}; "
            f"supported drafters are {', '.join(ALGORITHMS)}",
        )
    model_type = raw.get("model_type", "qwen3")
    if model_type != "qwen3":
        raise DrafterError(
            "DP303",
            f"{folder}/config.json has model_type {model_type!r}; only qwen3-style drafters are supported",
        )
    return known[0]


def _refuse_unsupported(top: Fields, own: Fields) -> None:
    for key, neutral in _TOP_NEUTRAL.items():
        top.refuse_unless(key, neutral)
    for key in own.names():
        if key in _DFLASH_NEUTRAL:
            own.refuse_unless(key, _DFLASH_NEUTRAL[key])
        elif key not in _DFLASH_KEYS and own.get(key) is not None:
            raise own.unsupported(
                key, "this key is not known here, and it may change what the drafter computes"
            )
    draft_vocab = top.get("draft_vocab_size")
    if draft_vocab is not None and draft_vocab != top.get("vocab_size"):
        raise top.unsupported("draft_vocab_size", "drafters over a reduced vocabulary are not supported")


def _resolve(
    algorithm: Literal["dflash", "dflash2"], folder: Path, top: Fields, own: Fields, target_depth: int | None
) -> DrafterConfig:
    hidden, heads = top.count("hidden_size"), top.count("num_attention_heads")
    kv_heads, num_layers = top.count("num_key_value_heads"), top.count("num_hidden_layers")
    if heads % kv_heads:
        raise top.invalid(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    depth = top.count("num_target_layers", default=0) or None
    head_dim = top.count("head_dim", default=hidden // heads)
    return DrafterConfig(
        source=str(folder),
        algorithm=algorithm,
        hidden_size=hidden,
        intermediate_size=top.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=top.count("vocab_size"),
        rms_norm_eps=top.number("rms_norm_eps", default=1e-6),
        hidden_act=_activation(top),
        attention_bias=top.flag("attention_bias", default=False),
        tie_word_embeddings=top.flag("tie_word_embeddings", default=False),
        block_size=_block_size(top, own),
        num_target_layers=depth,
        target_layer_ids=_taps(top, own, num_layers, depth or target_depth),
        mask_token_id=_mask_token(top, own),
        rope=read_rope(top, head_dim),
        layers=_layers(top, own, num_layers),
        attention_sinks=own.flag("attention_sink_bias", default=False),
        value_scale=own.number("attention_value_scale", default=1.0),
        embedding_scale=own.number("input_embedding_scale", default=1.0),
        output_multiplier=own.number("output_multiplier", default=1.0),
        softcap=_softcap(own),
        conv=_conv(own, hidden) if algorithm == "dflash2" else None,
        selector=_selector(own) if algorithm == "dflash2" else None,
    )


def _activation(top: Fields) -> str:
    name = top.get("hidden_act") or "silu"
    if name not in ACTIVATIONS:
        raise top.unsupported("hidden_act", f"supported are {', '.join(ACTIVATIONS)}")
    return str(name)


def _block_size(top: Fields, own: Fields) -> int:
    size = own.count("block_size")
    if size < 2:
        raise top.invalid(f"block_size must be at least 2 (the anchor and one mask slot), got {size}")
    return size


def _mask_token(top: Fields, own: Fields) -> int:
    if own.get("mask_token_id") is None:
        raise DrafterError(
            "DP313",
            f"{top.where} names no dflash_config.mask_token_id; any guess would feed it an untrained row",
        )
    return own.count("mask_token_id", minimum=0)


def _taps(top: Fields, own: Fields, num_layers: int, depth: int | None) -> tuple[int, ...]:
    taps = own.get("target_layer_ids")
    if taps is None:
        if depth is None or depth < 4:
            raise top.invalid(
                "without dflash_config.target_layer_ids the taps follow from the target's depth, "
                f"which must be at least 4, got {depth}"
            )
        return default_taps(num_layers, depth)
    whole = isinstance(taps, list) and all(isinstance(tap, int) and not isinstance(tap, bool) for tap in taps)
    if not whole or not taps:
        raise own.invalid(f"target_layer_ids must be a list of layer numbers, got {taps!r}")
    return tuple(taps)


def _layers(top: Fields, own: Fields, num_layers: int) -> tuple[LayerAttention, ...]:
    """Window and causality of every layer (design section 4, "Attention per layer")."""
    use_swa = own.flag("use_swa", default=False)
    sliding = _sliding_layers(top, num_layers)
    window = _window(top, own, use_swa)
    if use_swa and window is None:
        raise own.invalid(
            "use_swa asks for a window, but neither swa_window_size nor sliding_window gives its size"
        )
    override = _causal_override(top, own)
    windowed = sliding if any(sliding) or not use_swa else (True,) * num_layers
    return tuple(
        LayerAttention(window=window if has_window else None, causal=typed if override is None else override)
        for has_window, typed in zip(windowed, sliding, strict=True)
    )


def _sliding_layers(top: Fields, num_layers: int) -> tuple[bool, ...]:
    types = top.get("layer_types")
    if types is None:
        # Qwen3's own rule for files written before `layer_types` existed.
        if not top.flag("use_sliding_window", default=False) or top.get("sliding_window") is None:
            return (False,) * num_layers
        first = top.count("max_window_layers", default=28, minimum=0)
        return tuple(index >= first for index in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers:
        raise top.invalid(f"layer_types must list one type for each of {num_layers} layers, got {types!r}")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise top.unsupported("layer_types", f"layers of type {kind!r} are not supported")
    return tuple(kind == "sliding_attention" for kind in types)


def _window(top: Fields, own: Fields, use_swa: bool) -> int | None:
    if own.get("swa_window_size") is not None:
        return own.count("swa_window_size")
    if (use_swa or top.flag("use_sliding_window", default=False)) and top.get("sliding_window") is not None:
        return top.count("sliding_window")
    return None


def _causal_override(top: Fields, own: Fields) -> bool | None:
    if top.get("is_causal") is not None:
        return top.flag("is_causal")
    if own.get("causal") is not None:
        return own.flag("causal")
    return None


def _softcap(own: Fields) -> float | None:
    if own.get("final_logit_softcapping") is None:
        return None
    cap = own.number("final_logit_softcapping")
    if cap <= 0:
        raise own.invalid(f"final_logit_softcapping must be positive, got {cap}")
    return cap


def _conv(own: Fields, hidden: int) -> ConvSettings:
    settings = ConvSettings(own.count("conv_kernel_size"), own.count("conv_group_size"))
    if hidden % settings.group_size:
        raise own.invalid(f"conv_group_size {settings.group_size} does not divide hidden_size {hidden}")
    return settings


def _selector(own: Fields) -> SelectorSettings:
    return SelectorSettings(own.count("selector_rank"), own.count("selector_top_k"))
