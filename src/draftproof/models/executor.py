"""Which executor runs a target: the fused one where it can, else the model's own code in Transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from draftproof.errors import ModelError
from draftproof.models.drafters.base import TargetInfo
from draftproof.models.kv import SequenceKV, TargetPages
from draftproof.models.loading import (
    EXECUTORS,
    check_dtype,
    device_of,
    float_dtype,
    only_fused,
    own_dtype,
    read_config,
)
from draftproof.models.rows import Segment, TargetOutput
from draftproof.models.target import Target, TargetOptions

if TYPE_CHECKING:
    from draftproof.models.fused import FusedSpec, Precision
    from draftproof.models.fused.weights import CheckpointTensors


class Sizes(Protocol):
    """Sizes of a target."""

    @property
    def model_type(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_position(self) -> int: ...


class TargetModel(Protocol):
    """What the engine knows of a target, whichever executor runs it; `models.target.Target` says what each part does."""

    name: str
    dtype: torch.dtype
    device: torch.device

    @property
    def structure(self) -> Sizes: ...
    @property
    def info(self) -> TargetInfo: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def has_compiled_attention(self) -> bool: ...
    def use_plain_attention(self) -> None: ...
    def new_pages(self, num_pages: int) -> TargetPages: ...
    def new_sequence(self) -> SequenceKV: ...
    def forward(self, segments: Sequence[Segment], taps: Sequence[int] = ()) -> TargetOutput: ...
    def self_test(self) -> bool: ...


@dataclass(frozen=True)
class FusedSource:
    """A checkpoint that the fused executor can run.

    Attributes:
        path, name: of the checkpoint.
        config: its Transformers config.
        tensors: its weights, read when asked for.
        spec: what the executor needs of it.
    """

    path: Path
    name: str
    config: Any
    tensors: CheckpointTensors
    spec: FusedSpec


def load_target(path: Path, name: str, options: TargetOptions | None = None) -> TargetModel:
    """Load a checkpoint folder for the executor that the options ask for, or for the best there is.

    Raises:
        ModelError: the folder is no usable causal LM (DP250 to DP264); DP265, the fused executor was asked for and cannot
            run it; DP266, so was an integer dtype, which only that one has; DP267, no such executor; DP268, the weights do
            not go into integers.
    """
    options = options or TargetOptions()
    check_dtype(options.dtype)
    if options.executor not in EXECUTORS:
        raise ModelError("DP267", f"executor must be one of {', '.join(EXECUTORS)}, got {options.executor!r}")
    source = find_source(path, name, options)
    if not isinstance(source, str):
        return _fused(source, options.dtype)
    if options.executor == "fused":
        raise ModelError("DP265", f"{name}: the fused executor cannot run it: {source}")
    if options.dtype in ("int8", "int4"):
        raise only_fused(name, options.dtype, source)
    return Target.load(path, name, options)


def without_fused(options: TargetOptions) -> TargetOptions | None:
    """The same on the Transformers executor, for a machine on which the fused one fails its test; None where it was asked for."""
    if options.executor == "fused" or options.dtype in ("int8", "int4"):
        return None
    return replace(options, executor="transformers")


def is_fused(target: TargetModel) -> bool:
    """Whether the fused executor runs it."""
    return not isinstance(target, Target)


def precision_of(target: TargetModel) -> str:
    """The precision of its products: one of `DTYPES`, not ``"auto"``."""
    if isinstance(target, Target):
        return str(target.dtype).removeprefix("torch.")
    precision: Precision = target.precision  # type: ignore[attr-defined]
    return str(precision.value)


def describe(target: TargetModel) -> str:
    """Executor, precision and version of the code that runs a target: what its speed depends on besides the machine."""
    if isinstance(target, Target):
        attention = "compiled" if target.has_compiled_attention else "plain"
        return f"transformers/{precision_of(target)}/{target.route.value}/{attention}"
    from draftproof.models.kernels.compiling import FOLDER, stamp_of

    return f"fused/{precision_of(target)}/{stamp_of(FOLDER)[:16]}"


def find_source(path: Path, name: str, options: TargetOptions) -> FusedSource | str:
    """The checkpoint as the fused executor wants it, or why it cannot have it.

    Raises:
        ModelError: DP250, it cannot be read; DP259, no such device; DP260, it is quantised.
    """
    if options.executor == "transformers":
        return "the Transformers executor was asked for"
    if options.route is not None:
        return f"route {options.route.value!r} was asked for, which is a way of the Transformers executor"
    if device_of(options.device).type != "cpu":
        return "it computes on the CPU"
    if not _numba_is_here():
        return "numba cannot be imported"
    config = read_config(path, name, options.trust_remote_code)
    return _source(path, name, config)


def _source(path: Path, name: str, config: Any) -> FusedSource | str:
    from draftproof.models.fused import MODEL_TYPES, build_spec
    from draftproof.models.fused.weights import CheckpointTensors

    model_type = config.get_text_config().model_type
    if model_type not in MODEL_TYPES:
        return f"it covers {', '.join(sorted(MODEL_TYPES))}, not {model_type}"
    tensors = CheckpointTensors(path, name)
    if not tensors:
        return "the weights are not in safetensors files"
    if not tensors.plain:
        return "some weights are not stored as float32, bfloat16 or float16"
    spec = build_spec(config, tensors)
    if spec is None:
        return f"the configuration or the weights' names are not those of a plain {model_type} model"
    return FusedSource(path, name, config, tensors, spec)


def _fused(source: FusedSource, dtype: str) -> TargetModel:
    from draftproof.models.fused import FusedTarget, Precision
    from draftproof.models.verdicts import precision_for

    if dtype == "auto" and own_dtype(source.config) != torch.float32:
        precision = precision_for(source)
    else:
        kind = float_dtype(dtype, source.config, torch.device("cpu"))
        precision = Precision(dtype if kind is None else str(kind).removeprefix("torch."))
    try:
        return FusedTarget(source.spec, precision, source.name)
    except ValueError as error:
        raise ModelError(
            "DP268", f"{source.name}: the weights cannot be stored as {precision.value}: {error}"
        ) from error


def _numba_is_here() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True
