"""Every precondition of the verification functions, in one place: what is checked, in which order, in which words.

Shape, dtype, device and length checks always run. Checks that look at values always run on CPU; elsewhere they
would stall the device, so they run only with ``DRAFTPROOF_DEBUG=1`` in the environment. All raise `ContractError`,
which is a `ValueError`, before any arithmetic; only the contents of logit and draft-probability rows are looked at
later, when (and only if) the row is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from draftproof.errors import ContractError
from draftproof.verify.config import DEFAULTS, THRESHOLD_ACC_FLOOR
from draftproof.verify.sampling_info import TOP_K_ALL, Filters, SamplingInfoLike

NAN_ROW, INF_ROW, DEAD_ROW, BAD_DRAFT_PROB, BAD_DRAFT_ROW = 1, 2, 3, 4, 5
"""Faults that only reading a row can find. 0 stands for a sound row."""

_INTEGERS = frozenset(
    {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
)


def debug_mode() -> bool:
    """Whether value checks run on every device (``DRAFTPROOF_DEBUG=1``)."""
    return os.environ.get("DRAFTPROOF_DEBUG") == "1"


def values_checked(device: torch.device) -> bool:
    """Whether checks may look at values on this device."""
    return device.type == "cpu" or debug_mode()


# --- shapes, in the order of the reference rule -------------------------------------------------------------------


def check_candidates_2d(candidates: torch.Tensor) -> None:
    """`candidates` is a tensor ``[bs, draft_token_num]``."""
    _require_tensor(candidates, "candidates")
    if candidates.ndim != 2:
        raise ContractError("DP101", f"candidates must be 2D, got shape={tuple(candidates.shape)}")


def check_sizes(candidates: torch.Tensor) -> tuple[int, int]:
    """At least one sequence and at least the anchor. Returns (bs, draft_token_num)."""
    bs, draft_token_num = candidates.shape
    if bs <= 0:
        raise ContractError("DP103", f"batch size must be positive, got {bs}.")
    if draft_token_num <= 0:
        raise ContractError("DP104", f"draft_token_num must be positive, got {draft_token_num}.")
    return bs, draft_token_num


def check_layout(candidates: torch.Tensor, next_token_logits: torch.Tensor) -> tuple[int, int]:
    """Candidates and logits fit each other: one logit row per candidate, one device. Returns (bs, draft_token_num)."""
    check_candidates_2d(candidates)
    _require_tensor(next_token_logits, "next_token_logits")
    if next_token_logits.ndim != 2:
        shape = tuple(next_token_logits.shape)
        raise ContractError("DP102", f"next_token_logits must be 2D, got shape={shape}.")
    bs, draft_token_num = check_sizes(candidates)
    if next_token_logits.shape[0] != bs * draft_token_num:
        raise ContractError(
            "DP105",
            "next_token_logits row count mismatch. "
            f"Expected {bs * draft_token_num}, got {next_token_logits.shape[0]}.",
        )
    if candidates.device != next_token_logits.device:
        raise ContractError(
            "DP106",
            "candidates and next_token_logits must be on the same device, "
            f"got {candidates.device} and {next_token_logits.device}.",
        )
    return bs, draft_token_num


def check_first_rows(first_rows: Sequence[int], drafts: Sequence[Sequence[int]], rows: int) -> None:
    """Ragged drafts: every sequence's rows, one for the anchor and one a draft, are among the `rows` there are."""
    ends = [first + 1 + len(mine) for first, mine in zip(first_rows, drafts, strict=False)]
    needed = max(ends, default=0)
    if len(first_rows) != len(drafts) or needed > rows or min(first_rows, default=0) < 0:
        raise ContractError(
            "DP105",
            f"next_token_logits row count mismatch. Expected {needed} for {len(drafts)} drafts and "
            f"{len(first_rows)} first rows, got {rows}.",
        )


def check_coin_shapes(coins: torch.Tensor | None, final_coins: torch.Tensor | None, bs: int, n: int) -> None:
    """`uniform_samples` is ``[bs, draft_token_num]`` and `uniform_samples_for_final_sampling` ``[bs]``, where given."""
    for name, value, expected, code in (
        ("uniform_samples", coins, (bs, n), "DP107"),
        ("uniform_samples_for_final_sampling", final_coins, (bs,), "DP108"),
    ):
        if value is None:
            continue
        _require_tensor(value, name)
        if tuple(value.shape) != expected:
            raise ContractError(
                code, f"{name} shape mismatch. Expected {expected}, got {tuple(value.shape)}."
            )


def check_predict_shape(candidates: torch.Tensor, target_predict: torch.Tensor) -> None:
    """`target_predict` has one entry per candidate."""
    _require_tensor(target_predict, "target_predict")
    if target_predict.shape != candidates.shape:
        raise ContractError(
            "DP109",
            "target_predict must have the same shape as candidates. "
            f"candidates.shape={tuple(candidates.shape)}, target_predict.shape={tuple(target_predict.shape)}.",
        )
    if candidates.device != target_predict.device:
        raise ContractError(
            "DP106",
            "candidates and target_predict must be on the same device, "
            f"got {candidates.device} and {target_predict.device}.",
        )


# --- dtypes -------------------------------------------------------------------------------------------------------


def check_integer(tensor: torch.Tensor, name: str) -> None:
    """Token ids and the like are integers."""
    if tensor.dtype not in _INTEGERS:
        raise ContractError("DP110", f"{name} must be an integer tensor, got dtype={tensor.dtype}.")


def check_floating(tensor: torch.Tensor, name: str) -> None:
    """Logits, probabilities and coins are floating point."""
    if not tensor.dtype.is_floating_point:
        raise ContractError("DP111", f"{name} must be a floating-point tensor, got dtype={tensor.dtype}.")


def check_logits(logits: torch.Tensor, name: str) -> None:
    """Free-standing logit rows: a floating-point ``[rows, vocab]`` with something in it."""
    _require_tensor(logits, name)
    if logits.ndim != 2:
        raise ContractError("DP102", f"{name} must be 2D, got shape={tuple(logits.shape)}.")
    if logits.shape[0] <= 0:
        raise ContractError("DP103", f"batch size must be positive, got {logits.shape[0]}.")
    check_logit_dtype(logits, name)


def check_logit_dtype(logits: torch.Tensor, name: str = "next_token_logits") -> None:
    """Floating point, over a vocabulary of at least one token."""
    check_floating(logits, name)
    if logits.shape[1] <= 0:
        raise ContractError(
            "DP120", f"{name} must have a vocabulary of at least one token, got shape={tuple(logits.shape)}."
        )


# --- per-request settings -----------------------------------------------------------------------------------------


def resolve_filters(sampling_info: SamplingInfoLike, count: int, device: torch.device) -> Filters:
    """Check the vectors that are needed and spread the rest to neutral values.

    Args:
        sampling_info: see `SamplingInfoLike`.
        count: entries wanted.
        device: the logits' device.

    Raises:
        ContractError: wrong length, dtype or device of a needed vector, then a value out of range.
    """
    need_top_k = bool(sampling_info.need_top_k_sampling)
    need_top_p = bool(sampling_info.need_top_p_sampling)
    need_min_p = bool(getattr(sampling_info, "need_min_p_sampling", False))
    temperatures = _vector(sampling_info.temperatures, "temperatures", count, device)
    top_ks = _vector(sampling_info.top_ks, "top_ks", count, device) if need_top_k else None
    top_ps = _vector(sampling_info.top_ps, "top_ps", count, device) if need_top_p else None
    min_ps = _vector(getattr(sampling_info, "min_ps", None), "min_ps", count, device) if need_min_p else None
    if top_ks is not None:
        check_integer(top_ks, "top_ks")
    if values_checked(device):
        _check_values("DP114", "temperatures", temperatures, lambda t: 0 < t < math.inf, "> 0 and finite")
        wanted = ">= 1 (use the vocabulary size or more for all)"
        _check_values("DP115", "top_ks", top_ks, lambda k: k >= 1, wanted)
        _check_values("DP116", "top_ps", top_ps, lambda p: 0 < p <= 1, "in (0, 1]")
        _check_values("DP117", "min_ps", min_ps, lambda p: 0 <= p <= 1, "in [0, 1]")
    return Filters(
        temperatures=temperatures.to(torch.float64),
        top_ks=_or_full(top_ks, count, TOP_K_ALL, torch.int64, device),
        top_ps=_or_full(top_ps, count, 1.0, torch.float64, device),
        min_ps=_or_full(min_ps, count, 0.0, torch.float64, device),
        ranked=need_top_k or need_top_p,
    )


def check_promises(filters: Filters, max_top_k: int | None, uniform_top_k_value: int | None) -> None:
    """The caller's word about `top_ks`, checked in debug mode only: checking is what it is given to save."""
    if not debug_mode():
        return
    for name, promise, kept in (
        ("max_top_k", max_top_k, lambda k: filters.top_ks <= k),
        ("uniform_top_k_value", uniform_top_k_value, lambda k: filters.top_ks == k),
    ):
        if promise is not None and not bool(kept(promise).all()):
            raise ContractError(
                "DP127", f"{name}={promise} does not hold for top_ks, got {filters.top_ks.tolist()}."
            )


def check_per_request(value: torch.Tensor, name: str, count: int, device: torch.device) -> torch.Tensor:
    """An integer vector with one entry a sequence, e.g. `seeds`."""
    vector = _vector(value, name, count, device)
    check_integer(vector, name)
    return vector


def check_positions(positions: torch.Tensor) -> None:
    """Output positions start at 0."""
    if values_checked(positions.device):
        _check_values("DP124", "positions", positions, lambda i: i >= 0, ">= 0")


def resolve_draft_lens(
    draft_lens: torch.Tensor | None, bs: int, n: int, device: torch.device
) -> torch.Tensor:
    """Draft tokens of each sequence, int64 ``[bs]``, each in [0, n - 1]; n - 1 where not given."""
    if draft_lens is None:
        return torch.full((bs,), n - 1, dtype=torch.int64, device=device)
    lens = check_per_request(draft_lens, "draft_lens", bs, device).to(torch.int64)
    if values_checked(device):
        wanted = f"in [0, {n - 1}] (the anchor is not counted)"
        _check_values("DP125", "draft_lens", lens, lambda k: 0 <= k < n, wanted)
    return lens


def check_tokens(candidates: torch.Tensor, vocab: int, draft_lens: torch.Tensor | None = None) -> None:
    """Anchor and draft tokens, int64 ``[bs, n]``, are ids of the vocabulary; columns past the drafts may be anything."""
    if not values_checked(candidates.device):
        return
    lowest, highest = candidates.aminmax()
    if lowest >= 0 and highest < vocab:
        return
    bad = (candidates < 0) | (candidates >= vocab)
    if draft_lens is not None:
        bad &= torch.arange(candidates.shape[1], device=candidates.device) <= draft_lens[:, None]
    if bool(bad.any()):
        b, t = bad.nonzero()[0].tolist()
        raise ContractError(
            "DP113",
            f"candidates must be token ids in [0, {vocab}), got {int(candidates[b, t])} at sequence {b}, column {t}.",
        )


# --- coins, thresholds, draft probabilities -----------------------------------------------------------------------


def resolve_coins(
    coins: torch.Tensor | None, name: str, shape: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    """Check given coins or draw missing ones from torch's global generator, in float64.

    Float64 because a coin also picks tokens by inverse CDF: 24-bit coins would visibly favour some of 150,000.
    """
    if coins is None:
        return torch.rand(shape, dtype=torch.float64, device=device)
    check_floating(coins, name)
    _check_device(coins, name, device)
    if values_checked(device):
        lowest, highest = coins.aminmax()  # NaN comes out as NaN
        if not (lowest >= 0 and highest <= 1):
            _check_values("DP119", name, coins, lambda u: 0 <= u <= 1, "in [0, 1)")
    return coins.to(torch.float64)


def resolve_thresholds(threshold_single: float | None, threshold_acc: float | None) -> tuple[float, float]:
    """Defaults, range check and floor. Returns (single, acc)."""
    single = DEFAULTS.threshold_single if threshold_single is None else float(threshold_single)
    acc = DEFAULTS.threshold_acc if threshold_acc is None else float(threshold_acc)
    for name, value in (("threshold_single", single), ("threshold_acc", acc)):
        if not 0.0 <= value <= 1.0:
            raise ContractError("DP118", f"{name} must be in [0, 1], got {value}.")
    return single, max(acc, THRESHOLD_ACC_FLOOR)


def check_draft_probs(draft_probs: torch.Tensor, bs: int, n: int, vocab: int, device: torch.device) -> None:
    """`draft_probs` is floating point ``[bs, n - 1, vocab]`` on the logits' device."""
    _require_tensor(draft_probs, "draft_probs")
    expected = (bs, n - 1, vocab)
    if tuple(draft_probs.shape) != expected:
        raise ContractError(
            "DP126", f"draft_probs shape mismatch. Expected {expected}, got {tuple(draft_probs.shape)}."
        )
    check_floating(draft_probs, "draft_probs")
    _check_device(draft_probs, "draft_probs", device)


# --- what only reading a row can tell -----------------------------------------------------------------------------


def check_rows(logits: torch.Tensor, rows: torch.Tensor, name: str = "next_token_logits") -> None:
    """No NaN, no +inf and at least one finite logit in the given rows, int64 ``[k]``; first fault in row order."""
    if not values_checked(logits.device):
        return
    best = logits.index_select(0, rows).amax(-1)
    sound = torch.isfinite(best)
    if not bool(sound.all()):
        first = int((~sound).nonzero()[0, 0])
        value = float(best[first])
        fault = NAN_ROW if value != value else (INF_ROW if value > 0 else DEAD_ROW)
        raise_row_fault(fault, int(rows[first]), name)


def check_draft_probs_read(
    sound: torch.Tensor, fault: int, level: int, sequences: torch.Tensor, drafts: torch.Tensor
) -> None:
    """Raise `fault` for the first sequence whose draft probabilities are not sound. All tensors ``[k]``."""
    if values_checked(sound.device) and not bool(sound.all()):
        first = int((~sound).nonzero()[0, 0])
        raise_draft_fault(fault, int(sequences[first]), level, int(drafts[first]))


def raise_first_fault(
    outcomes: list[tuple[int, int, int, int]], n: int, name: str = "next_token_logits"
) -> None:
    """Raise the fault met at the lowest level, then sequence, of compiled walks; none if all are sound.

    Args:
        outcomes: (fault, level, accepted, bonus or drafted token) of each sequence.
        n: candidates per sequence.
        name: what the caller calls the logits.
    """
    faults = [(level, b, fault, token) for b, (fault, level, _, token) in enumerate(outcomes) if fault]
    if not faults:
        return
    level, b, fault, token = min(faults)
    if fault in (BAD_DRAFT_PROB, BAD_DRAFT_ROW):
        raise_draft_fault(fault, b, level, token)
    raise_row_fault(fault, b * n + level, name)


def raise_row_fault(fault: int, row: int, name: str = "next_token_logits") -> NoReturn:
    """Turn the fault of a logit row into its error."""
    if fault == NAN_ROW:
        raise ContractError("DP121", f"{name} has NaN in row {row}.")
    if fault == INF_ROW:
        raise ContractError("DP122", f"{name} has +inf in row {row}.")
    raise ContractError("DP123", f"{name} has no finite logit in row {row}.")


def raise_draft_fault(fault: int, sequence: int, level: int, token: int) -> NoReturn:
    """Turn the fault of a draft-probability row into its error."""
    where = f"sequence {sequence}, draft {level}"
    if fault == BAD_DRAFT_PROB:
        raise ContractError(
            "DP128",
            f"draft_probs must be positive at the drafted token, got q({token}) <= 0 or NaN at {where}.",
        )
    raise ContractError("DP129", f"draft_probs must be finite and >= 0, got a row that is not at {where}.")


# --- helpers ------------------------------------------------------------------------------------------------------


def _require_tensor(value: object, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise ContractError("DP100", f"{name} must be a torch.Tensor, got {type(value).__name__}.")


def _vector(value: object, name: str, count: int, device: torch.device) -> torch.Tensor:
    """A per-request vector as ``[count]``; ``[count, 1]`` is taken too, as `temperatures` has it."""
    _require_tensor(value, name)
    assert isinstance(value, torch.Tensor)
    if tuple(value.shape) not in ((count,), (count, 1)):
        raise ContractError(
            "DP112",
            f"{name} must have one entry per sequence. Expected {count}, got shape={tuple(value.shape)}.",
        )
    _check_device(value, name, device)
    return value.reshape(count)


def _check_device(tensor: torch.Tensor, name: str, device: torch.device) -> None:
    if tensor.device != device:
        raise ContractError(
            "DP106",
            f"{name} and next_token_logits must be on the same device, got {tensor.device} and {device}.",
        )


def _check_values(
    code: str, name: str, values: torch.Tensor | None, sound: Callable[[float], bool], wanted: str
) -> None:
    """As Python numbers: for the few there are, that is several times faster than tensor operations."""
    if values is None:
        return
    for value in values.flatten().tolist():
        if not sound(value):
            raise ContractError(code, f"{name} must be {wanted}, got {value}.")


def _or_full(
    vector: torch.Tensor | None, count: int, neutral: float, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    if vector is None:
        return torch.full((count,), neutral, dtype=dtype, device=device)
    return vector.to(dtype)
