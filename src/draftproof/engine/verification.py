"""From logit rows to accepted drafts and bonus tokens, for all sequences of a step.

Each sequence is verified by its own settings. Calls are shared where that changes nothing but their number: one for all greedy
sequences, one for all sampled ones with equally many candidates. A sequence whose rows cannot be verified (NaN, a grammar at its
end) fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from draftproof.engine.candidates import Work
from draftproof.engine.faults import as_coded
from draftproof.engine.sequence import Sequence
from draftproof.errors import ContractError, DraftproofError, ModelError
from draftproof.models.rows import TargetOutput
from draftproof.verify import (
    SamplingInfo,
    compute_dflash_correct_drafts_and_bonus,
    verify_drafter_invariant,
)

_ROWS_AT_ONCE = 64
"""Rows converted to float32 together for an argmax; bounds the copy."""


@dataclass(frozen=True)
class Verdict:
    """What verification says of one sequence.

    Attributes:
        accepted: draft tokens kept.
        bonus: the target's own token after them.
        error: why there is no verdict; the other two mean nothing then.
    """

    accepted: int = 0
    bonus: int = -1
    error: DraftproofError | None = None


@dataclass(frozen=True)
class _Rows:
    """Candidates ready to verify: rows already penalised and masked, one for the anchor and each draft."""

    index: int
    sequence: Sequence
    anchor: int
    drafts: list[int]
    logits: torch.Tensor


def verify(works: Items[Work], output: TargetOutput) -> list[Verdict]:
    """A verdict for each; every chunk among `works` is the last of its sequence."""
    verdicts: list[Verdict | None] = [None] * len(works)
    ready: list[_Rows] = []
    for index, work in enumerate(works):
        try:
            ready.append(_prepare(index, work, output))
        except Exception as error:  # of a grammar, say: it concerns this sequence alone
            verdicts[index] = Verdict(error=as_coded(error))
    greedy = [rows for rows in ready if rows.sequence.sampling.is_greedy]
    sampled = [rows for rows in ready if not rows.sequence.sampling.is_greedy]
    for rows, verdict in [*_greedy(greedy), *_sampled(sampled)]:
        verdicts[rows.index] = verdict
    return [verdict for verdict in verdicts if verdict is not None]


def _prepare(index: int, work: Work, output: TargetOutput) -> _Rows:
    sequence, logits, drafts = work.sequence, work.logits_of(output), work.drafts
    if sequence.rules is not None:
        adjusted = sequence.rules.apply(logits, drafts)
        logits, drafts = adjusted.logits, drafts[: adjusted.logits.shape[0] - 1]
    return _Rows(index, sequence, sequence.tokens[-1], drafts, logits)


def _greedy(ready: Items[_Rows]) -> list[tuple[_Rows, Verdict]]:
    """One call for all: shorter candidates are filled up with -1, which is no token and so never accepted."""
    if not ready:
        return []
    width = 1 + max(len(rows.drafts) for rows in ready)
    candidates = torch.full((len(ready), width), -1, dtype=torch.long)
    predict = torch.zeros((len(ready), width), dtype=torch.long)
    chosen = _choices(ready)
    for place, (rows, (best, _)) in enumerate(zip(ready, chosen, strict=True)):
        candidates[place, : 1 + len(rows.drafts)] = torch.tensor([rows.anchor, *rows.drafts])
        predict[place, : best.shape[0]] = best
    accepted, bonus = compute_dflash_correct_drafts_and_bonus(candidates=candidates, target_predict=predict)
    return [
        # A row behind a rejected draft is read by nobody and may hold anything.
        (rows, Verdict(error=_nan()) if any(broken[: int(a) + 1]) else Verdict(int(a), int(b)))
        for rows, a, b, (_, broken) in zip(ready, accepted.tolist(), bonus.tolist(), chosen, strict=True)
    ]


def _choices(ready: Items[_Rows]) -> list[tuple[torch.Tensor, list[bool]]]:
    """What `_argmax` says of each sequence's rows, in two calls: rows as they came, and those that rules have made anew."""
    chosen: dict[int, tuple[torch.Tensor, list[bool]]] = {}
    for ruled in (False, True):
        some = [rows for rows in ready if (rows.sequence.rules is not None) is ruled]
        if some:
            best, broken = _argmax(_side_by_side([rows.logits for rows in some]))
            start = 0
            for rows in some:
                end = start + rows.logits.shape[0]
                chosen[rows.index] = (best[start:end], broken[start:end])
                start = end
    return [chosen[rows.index] for rows in ready]


def _argmax(logits: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
    """The lowest id with the highest logit of each row, and which rows have NaN (it counts as the maximum)."""
    ids, highest = [], []
    for part in logits.split(_ROWS_AT_ONCE):
        # In float32, where argmax is several times faster on a CPU.
        part = part.float()
        best = part.argmax(dim=-1)
        ids.append(best)
        highest.append(part.gather(-1, best[:, None]))
    return torch.cat(ids).cpu(), torch.cat(highest)[:, 0].isnan().tolist()


def _nan() -> ModelError:
    return ModelError(
        "DP262", "the target gave NaN logits: its weights or its dtype are broken; try dtype='float32'"
    )


def _sampled(ready: Items[_Rows]) -> list[tuple[_Rows, Verdict]]:
    groups: dict[int, list[_Rows]] = {}
    for rows in ready:
        groups.setdefault(len(rows.drafts), []).append(rows)
    return [pair for group in groups.values() for pair in _sampled_group(group)]


def _sampled_group(group: list[_Rows]) -> list[tuple[_Rows, Verdict]]:
    """Sequences with equally many candidates, in one call; one by one where somebody's rows are at fault."""
    try:
        return _sampled_call(group)
    except ContractError as error:
        if len(group) == 1:
            return [(group[0], Verdict(error=error))]
        return [pair for rows in group for pair in _sampled_group([rows])]


def _sampled_call(group: list[_Rows]) -> list[tuple[_Rows, Verdict]]:
    logits = _side_by_side([rows.logits for rows in group])
    device = logits.device
    settings = [rows.sequence.sampling for rows in group]
    accepted, bonus = verify_drafter_invariant(
        candidates=torch.tensor([[rows.anchor, *rows.drafts] for rows in group], device=device),
        next_token_logits=logits,
        sampling_info=SamplingInfo.of(
            temperature=[one.temperature for one in settings],
            top_k=[one.top_k for one in settings],
            top_p=[one.top_p for one in settings],
            min_p=[one.min_p for one in settings],
            device=device,
        ),
        seeds=torch.tensor([rows.sequence.seed for rows in group], device=device),
        positions=torch.tensor([rows.sequence.output_length for rows in group], device=device),
    )
    return [
        (rows, Verdict(int(a), int(b)))
        for rows, a, b in zip(group, accepted.tolist(), bonus.tolist(), strict=True)
    ]


def _side_by_side(parts: list[torch.Tensor]) -> torch.Tensor:
    """The parts as one tensor; without a copy where they are neighbours in memory already."""
    first = parts[0]
    total = sum(part.shape[0] for part in parts)
    end = first.storage_offset()
    for part in parts:
        beside = (
            part.dtype == first.dtype
            and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and part.storage_offset() == end
            and part.stride() == first.stride()
        )
        if not beside:
            dtype = torch.float32 if any(p.dtype != first.dtype for p in parts) else first.dtype
            return torch.cat([p.to(dtype) for p in parts])
        end += part.shape[0] * part.stride(0)
    return first.as_strided((total, first.shape[1]), first.stride(), first.storage_offset())
