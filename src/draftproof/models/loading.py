"""Reads a checkpoint folder into a Transformers model, strictly: nothing missing, nothing made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from draftproof.errors import ModelError
from draftproof.models.attention import NAME, register
from draftproof.models.linear import packing_available

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
        ModelError: DP250 (unreadable, or weights missing or misshapen), DP259 (unknown dtype or device), DP260 (quantised).
    """
    register()
    where = _device(device)
    config = _config(path, name, trust_remote_code)
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(
            "DP260",
            f"{name} is a quantised checkpoint ({_method(config)}); use the unquantised weights of the same model",
        )
    kind = _dtype(dtype, config, where)
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


def _config(path: Path, name: str, trust_remote_code: bool) -> Any:
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError("DP250", f"cannot read the configuration of {name}: {_one_line(error)}") from error


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


def _dtype(dtype: str, config: Any, device: torch.device) -> torch.dtype:
    if dtype in _DTYPES:
        return _DTYPES[dtype]
    if dtype != "auto":
        raise ModelError("DP259", f"dtype must be one of auto, {', '.join(_DTYPES)}, got {dtype!r}")
    own = getattr(config.get_text_config(), "dtype", None) or torch.float32
    if own == torch.float32:
        return torch.float32
    good = device.type != "cpu" or packing_available(torch.bfloat16, device)
    return torch.bfloat16 if good else torch.float32


def _device(device: str) -> torch.device:
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
