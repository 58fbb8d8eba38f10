"""The tensors of a published drafter checkpoint: which there must be, reading them, checking them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from draftproof.errors import DrafterError
from draftproof.models.drafters.config import DrafterConfig

Shape = tuple[int, ...]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def expected_shapes(config: DrafterConfig, target_hidden: int) -> dict[str, Shape]:
    """Name and shape of every tensor the checkpoint must hold, for a target of that hidden size."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {
        "fc.weight": (hidden, len(config.target_layer_ids) * target_hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer_shapes(config).items()}
    if config.selector is not None:
        codebook = (config.vocab_size, config.selector.rank)
        shapes |= {f"{name}.weight": codebook for name in _CODEBOOKS}
        shapes["candidate_selector.hidden_projection.weight"] = (config.selector.rank, hidden)
    return shapes


def optional_shapes(config: DrafterConfig) -> dict[str, Shape]:
    """Tensors a checkpoint may bring along; without them the drafter borrows the target's."""
    table = (config.vocab_size, config.hidden_size)
    return {"embed_tokens.weight": table, "lm_head.weight": table}


def _layer_shapes(config: DrafterConfig) -> dict[str, Shape]:
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head, config.num_kv_heads * head
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.attention_bias:
        widths = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": hidden}
        shapes |= {f"self_attn.{name}.bias": (width,) for name, width in widths.items()}
    if config.attention_sinks:
        shapes["self_attn.attention_sink_bias"] = (config.num_heads,)
    if config.conv is not None:
        size, groups = config.conv.kernel_size, hidden // config.conv.group_size
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"{name}.base_kernel"] = (2, size, hidden)
            shapes[f"{name}.kernel_projection.weight"] = (2 * size * groups, hidden)
    return shapes


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the folder, on the CPU, under the names of `expected_shapes`.

    Raises:
        DrafterError: DP304 a file is missing, truncated or corrupt; DP306 names that do not fit together.
    """
    if (folder / "mask_embedding.pt").exists():
        raise DrafterError(
            "DP303", f"{folder} brings a trained mask embedding (mask_embedding.pt), which is not supported"
        )
    tensors: dict[str, torch.Tensor] = {}
    for file in _files(folder):
        tensors |= _read_file(file)
    return _canonical(tensors, folder)


def _files(folder: Path) -> list[Path]:
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    index = folder / _INDEX
    if not index.is_file():
        found = ", ".join(
            sorted(p.name for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".pt"))
        )
        raise DrafterError(
            "DP304", f"{folder} has neither {_SINGLE} nor {_INDEX} (weight files there: {found or 'none'})"
        )
    try:
        return sorted(
            {folder / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DrafterError("DP304", f"{index} cannot be read as a safetensors index: {error!r}") from error


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise DrafterError(
            "DP304", f"{path} is named by {_INDEX} but is not there; fetch the checkpoint again"
        )
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise DrafterError(
            "DP304", f"{path} is truncated or corrupt ({error}); fetch the checkpoint again"
        ) from error


def _canonical(tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Drop a leading ``model.`` where all names have it, and give the codebooks their ``.weight``."""
    renamed: dict[str, torch.Tensor] = {}
    inner = [name for name in tensors if not name.startswith("lm_head.")]
    prefixed = [name for name in inner if name.startswith("model.")]
    if prefixed and len(prefixed) < len(inner):
        odd = next(name for name in inner if not name.startswith("model."))
        raise DrafterError("DP306", f"{folder}: {prefixed[0]} has the prefix 'model.' but {odd} does not")
    for name, tensor in tensors.items():
        plain = name.removeprefix("model.")
        plain = f"{plain}.weight" if plain in _CODEBOOKS else plain
        if plain in renamed:
            raise DrafterError("DP306", f"{folder}: two tensors both stand for {plain}")
        renamed[plain] = tensor
    return renamed


def check_tensors(config: DrafterConfig, tensors: dict[str, torch.Tensor], target_hidden: int) -> None:
    """Names, shapes, dtypes and finiteness of all tensors.

    Raises:
        DrafterError: DP303 quantised, DP305 missing, DP306 unexpected, DP307 wrong shape, DP308 not finite.
    """
    needed, optional = expected_shapes(config, target_hidden), optional_shapes(config)
    if missing := [name for name in needed if name not in tensors]:
        raise DrafterError(
            "DP305", f"{config.source} lacks {len(missing)} of {len(needed)} weights: {_some(missing)}"
        )
    if unexpected := sorted(tensors.keys() - needed.keys() - optional.keys()):
        raise DrafterError(
            "DP306",
            f"{config.source} holds weights that its config does not call for: {_some(unexpected)}",
        )
    for name, tensor in tensors.items():
        _check_one(config.source, name, tensor, (needed | optional)[name])


def _check_one(source: str, name: str, tensor: torch.Tensor, shape: Shape) -> None:
    if tensor.dtype not in _FLOATS:
        raise DrafterError(
            "DP303", f"{source}: {name} is stored as {tensor.dtype}; quantised drafters are not supported"
        )
    if tuple(tensor.shape) != shape:
        raise DrafterError(
            "DP307", f"{source}: {name} has shape {tuple(tensor.shape)}, but its config makes it {shape}"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise DrafterError("DP308", f"{source}: {name} holds NaN or infinity; the checkpoint is damaged")


def _some(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
