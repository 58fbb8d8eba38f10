"""Reads a checkpoint folder into a Transformers model, strictly: nothing missing, nothing made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from draftproof.errors import ModelError
from draftproof.models.attention import NAME, register
from draftproof.models.linear import packing_available

DTYPES = ("auto", "float32", "bfloat16", "int8", "int4")
"""What a target may be asked to compute in. The integers are for weights, and for the fused executor."""
EXECUTORS = ("auto", "fused", "transformers")
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load_causal_lm(path: Path, name: str, dtype: str, device: str, trust_remote_code: bool) -> nn.Module:
    """Load the causal LM in `path` with draftproof's attention.

    Args:
        path: folder with config and weights.
        name: how messages call it.
        dtype: ``"auto"``, ``"bfloat16"`` or ``"float32"``.
        device: ``"auto"`` or a torch device.
        trust_remote_code: run the checkpoint's own modelling code.

    Raises:
        ModelError: DP250 (unreadable, or weights missing or misshapen), DP259 (unknown dtype or device), DP260 (quantised),
            DP266 (a dtype that only the fused executor has).
    """
    register()
    check_dtype(dtype)
    where = device_of(device)
    config = read_config(path, name, trust_remote_code)
    kind = float_dtype(dtype, config, where)
    if kind is None:
        raise only_fused(name, dtype, "the Transformers executor was asked for")
    from transformers import AutoModelForCausalLM  # slow to import, and not needed by the fused executor

    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=kind,
            attn_implementation=NAME,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **_experts(config),
        )
    except (
        Exception
    ) as error:  # Transformers raises whatever its layers meet: all of it means "cannot be read"
        raise ModelError("DP250", f"cannot load {name}: {_one_line(error)}") from error
    _refuse_incomplete(report, name)
    model.requires_grad_(False)
    return model.to(where)


def no_attention_interface(name: str, model_type: str) -> ModelError:
    """The refusal of an architecture whose attention cannot be exchanged."""
    return ModelError(
        "DP253",
        f"{name}: the {model_type} code does not use Transformers' attention interface, so draftproof cannot give it "
        "row-invariant attention. Use an architecture that does (Llama, Qwen, Mistral, Gemma, ...).",
    )


def only_fused(name: str, dtype: str, why: str) -> ModelError:
    """The refusal of integer weights where the fused executor cannot run."""
    return ModelError(
        "DP266",
        f"{name}: dtype {dtype!r} needs the fused executor, which cannot be had: {why}. "
        "Use dtype 'bfloat16' or 'float32', or leave it 'auto'.",
    )


def read_config(path: Path, name: str, trust_remote_code: bool) -> Any:
    """The checkpoint's Transformers config.

    Raises:
        ModelError: DP250, it cannot be read; DP260, the checkpoint is quantised.
    """
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError("DP250", f"cannot read the configuration of {name}: {_one_line(error)}") from error
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(
            "DP260",
            f"{name} is a quantised checkpoint ({_method(config)}); use the unquantised weights of the same model",
        )
    return config


def check_dtype(dtype: object) -> None:
    """Raises `ModelError` DP259 for what is none of `DTYPES`."""
    if dtype not in DTYPES:
        raise ModelError("DP259", f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


def _experts(config: Any) -> dict[str, str]:
    """Experts of a mixture model go one by one through `F.linear`: grouped products differ with the company of a row."""
    return {"experts_implementation": "eager"} if hasattr(config, "num_experts_per_tok") else {}


def _refuse_incomplete(report: Any, name: str) -> None:
    """Transformers fills gaps with random weights and a warning; a target with made-up weights must not run."""
    missing = sorted(report.get("missing_keys") or ())
    misshapen = sorted(str(entry[0]) for entry in report.get("mismatched_keys") or ())
    if missing or misshapen:
        raise ModelError(
            "DP250",
            f"the weights of {name} do not fit its configuration: missing {_some(missing)}; misshapen {_some(misshapen)}. "
            "Fetch the checkpoint again.",
        )


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def float_dtype(dtype: str, config: Any, device: torch.device) -> torch.dtype | None:
    """The floating dtype that one of `DTYPES` means for a checkpoint; None for integers.

    ``"auto"`` is the checkpoint's own where this machine computes it well: float32, else bfloat16.
    """
    if dtype != "auto":
        return _DTYPES.get(dtype)
    if own_dtype(config) == torch.float32:
        return torch.float32
    good = device.type != "cpu" or packing_available(torch.bfloat16, device)
    return torch.bfloat16 if good else torch.float32


def own_dtype(config: Any) -> torch.dtype:
    """The dtype that a checkpoint was stored in, by its config."""
    own: torch.dtype = getattr(config.get_text_config(), "dtype", None) or torch.float32
    return own


def device_of(device: str) -> torch.device:
    """A torch device from its name; ``"auto"`` is CUDA where there is one.

    Raises:
        ModelError: DP259, it is not to be had.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        raise ModelError("DP259", f"device {device!r} is not to be had here: {_one_line(error)}") from error
    return where


def _method(config: Any) -> str:
    quantization = config.quantization_config
    method = (
        quantization.get("quant_method")
        if isinstance(quantization, dict)
        else getattr(quantization, "quant_method", None)
    )
    return json.dumps(str(getattr(method, "value", method)))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
