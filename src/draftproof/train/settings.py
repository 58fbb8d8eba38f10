"""Everything a training run can be told, with defaults, and the sizes that have names."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from draftproof.errors import RequestError
from draftproof.train.optimizers import KINDS as OPTIMIZERS
from draftproof.train.precision import PRECISIONS


@dataclass(frozen=True)
class TrainSettings:
    """A recipe. Two runs of one recipe, with the same data and seed, have the same loss curve.

    The fields of `FREE` may change between two calls of one run; everything else makes it another run.

    Attributes:
        num_layers: draft layers.
        block_size: anchor + mask slots of a block.
        num_taps: target layers whose outputs the drafter reads, spread evenly, where `taps` does not name them; no more than
            the target has.
        taps: target layers by number, from 0.
        mask_token_id: what fills the slots to be guessed; None: a special token that the data never hold.
        greedy_share: share of the prompts that the target answers at temperature 0; the rest at `temperature`.
        temperature: of the sampled answers.
        max_tokens: most tokens of an answer.
        answers_per_prompt: of which one at most is greedy.
        own_prompts: prompts that the target makes up itself, besides those given.
        response_tokens: enough of them; None: every prompt is answered.
        max_length: tokens of prompt and answer together; what is longer is cut at its end.
        cache_gib: most disk space of the features, GiB; what does not fit is computed again whenever it is needed.
        batch: sequences an optimizer step, over all processes.
        micro_batch: sequences a pass of one process; `batch` is a multiple of it and the number of processes.
        anchors: blocks a sequence, at random positions of the answer.
        gamma: the loss of the k-th guess of a block weighs ``exp(-(k-1)/gamma)``. A guess matters only when all before it are
            right; where each is with probability p, that is p^(k-1), so ``-1 / ln(p)`` fits: 2 for p = 0.6, 7 for 0.87.
        distill: weight, from 0 to 1, of the distance to the target's own distribution in the loss; the rest is on its tokens.
        distill_top_k: likeliest tokens of the target that the distance looks at one by one.
        reduced_vocabulary: compute the loss over the tokens that occur, the rest only for rows that need it.
        from_target: start from the target's last layers instead of random ones.
        optimizer: ``"adamw"`` or ``"muon"`` (matrices; AdamW for what is none).
        learning_rate: the highest; an update of Muon is as large as one of AdamW at the same rate.
        weight_decay: of matrices.
        warmup: share of the run over which the rate rises from 0.
        final_rate: share of the rate at which the cosine ends.
        clip: longest gradient.
        precision: of the passes, ``"bfloat16"`` (autocast), ``"float32"``, or ``"auto"``: bfloat16 where the device has it.
            Weights and optimizer are float32 always.
        seed: of everything drawn.
        draft_vocabulary: the drafter proposes only the commonest tokens that make up this share of the answers; 1: all.
        steps: optimizer steps; None: as many as fit into `time_limit`.
        time_limit: minutes of training, evaluation during it included, over all calls of one run together; None: no limit.
        eval_minutes: training time between evaluations.
        eval_steps: optimizer steps between evaluations; goes before `eval_minutes`.
        eval_prompts: held-out prompts a group in evaluations during training; the last one takes all.
        eval_tokens: most tokens decoded a prompt in evaluations during training.
        final_tokens: the same for the last evaluation.
        checkpoint_minutes: training time between checkpoints.
        checkpoint_steps: optimizer steps between checkpoints; goes before `checkpoint_minutes`.
    """

    num_layers: int = 3
    block_size: int = 8
    num_taps: int = 5
    taps: tuple[int, ...] | None = None
    mask_token_id: int | None = None
    greedy_share: float = 0.5
    temperature: float = 0.7
    max_tokens: int = 256
    answers_per_prompt: int = 1
    own_prompts: int = 0
    response_tokens: int | None = None
    max_length: int = 1024
    cache_gib: float = 8.0
    batch: int = 4
    micro_batch: int = 4
    anchors: int = 32
    gamma: float = 2.0
    distill: float = 0.0
    distill_top_k: int = 16
    reduced_vocabulary: bool = True
    from_target: bool = True
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.02
    final_rate: float = 0.02
    clip: float = 1.0
    precision: str = "auto"
    seed: int = 0
    draft_vocabulary: float = 0.995
    steps: int | None = None
    time_limit: float | None = None
    eval_minutes: float = 10.0
    eval_steps: int | None = None
    eval_prompts: int = 4
    eval_tokens: int = 96
    final_tokens: int = 128
    checkpoint_minutes: float = 5.0
    checkpoint_steps: int | None = None

    def checked(self) -> TrainSettings:
        """The same, if it makes sense.

        Raises:
            RequestError: DP520, a field is out of range.
        """
        for name in _COUNTS:
            _whole(name, getattr(self, name), _COUNTS[name])
        for name in _OPTIONAL_COUNTS:
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), _OPTIONAL_COUNTS[name])
        for name, (low, high) in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and low <= value <= high):
                end = "up" if high == math.inf else f"to {high:g}"
                raise RequestError("DP520", f"{name} must be a number from {low:g} {end}, got {value!r}")
        for name, known in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise RequestError(
                    "DP520", f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        self._check_together()
        return self

    def _check_together(self) -> None:
        if self.taps is not None and (
            not self.taps or any(isinstance(tap, bool) or not isinstance(tap, int) for tap in self.taps)
        ):
            raise RequestError("DP520", f"taps must be layer numbers of the target, got {self.taps!r}")
        if self.steps is None and self.time_limit is None:
            raise RequestError(
                "DP520", "a run needs an end: give steps, or a time limit in minutes, got neither"
            )
        if self.batch % self.micro_batch:
            raise RequestError(
                "DP520",
                f"batch must be a multiple of micro_batch, got {self.batch} and {self.micro_batch}",
            )

    def recipe(self) -> dict[str, Any]:
        """What makes a run this run, as JSON has it: all fields but those of `FREE`."""
        kept = {name: value for name, value in asdict(self).items() if name not in FREE}
        return dict(json.loads(json.dumps(kept)))


FREE = frozenset(
    (
        *("steps", "time_limit", "cache_gib", "eval_minutes", "eval_steps", "eval_prompts", "eval_tokens"),
        *("final_tokens", "checkpoint_minutes", "checkpoint_steps", "draft_vocabulary"),
    )
)
"""Fields that may change between two calls of one run. With other `steps` the learning rates differ from there on."""

_COUNTS = {
    "num_layers": 1,
    "block_size": 2,
    "num_taps": 1,
    "max_tokens": 1,
    "answers_per_prompt": 1,
    "own_prompts": 0,
    "max_length": 8,
    "batch": 1,
    "micro_batch": 1,
    "anchors": 1,
    "distill_top_k": 1,
    "seed": 0,
    "eval_prompts": 1,
    "eval_tokens": 2,
    "final_tokens": 2,
}
"""Whole numbers and the least each may be."""
_OPTIONAL_COUNTS = {
    "response_tokens": 1,
    "mask_token_id": 0,
    "steps": 1,
    "eval_steps": 1,
    "checkpoint_steps": 1,
}
_NUMBERS: dict[str, tuple[float, float]] = {
    "greedy_share": (0.0, 1.0),
    "temperature": (0.01, 10.0),
    "cache_gib": (0.0, math.inf),
    "gamma": (1e-3, math.inf),
    "distill": (0.0, 1.0),
    "learning_rate": (1e-9, 1.0),
    "weight_decay": (0.0, 1.0),
    "warmup": (0.0, 0.9),
    "final_rate": (0.0, 1.0),
    "clip": (1e-6, math.inf),
    "draft_vocabulary": (0.01, 1.0),
    "time_limit": (1e-3, math.inf),
    "eval_minutes": (1e-3, math.inf),
    "checkpoint_minutes": (1e-3, math.inf),
}

PRESETS: dict[str, TrainSettings] = {
    "tiny": TrainSettings(num_layers=1, num_taps=3, anchors=16),
    "small": TrainSettings(),
    "base": TrainSettings(num_layers=5, block_size=16, gamma=7.0, batch=16, learning_rate=6e-4, anchors=64),
}
"""Sizes by name: `tiny` to try the whole way out, `small` for a CPU and small targets, `base` for GPUs."""


def preset(name: str, **changes: Any) -> TrainSettings:
    """A named size with some fields changed.

    Args:
        name: of `PRESETS`.
        changes: fields by name; those that are None stay as the preset has them.

    Raises:
        RequestError: DP520, no such preset, or a field out of range.
    """
    if name not in PRESETS:
        raise RequestError("DP520", f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    given = {field: value for field, value in changes.items() if value is not None}
    unknown = given.keys() - {field.name for field in fields(TrainSettings)}
    if unknown:
        raise RequestError("DP520", f"no such setting: {', '.join(sorted(unknown))}")
    return replace(PRESETS[name], **given).checked()


def differing(one: dict[str, Any], other: dict[str, Any]) -> Sequence[str]:
    """Names of recipe fields in which two runs differ."""
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RequestError("DP520", f"{name} must be a whole number from {least}, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
