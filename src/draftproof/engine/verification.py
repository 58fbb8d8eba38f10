"""From logit rows to accepted drafts and bonus tokens, for all sequences of a step.

Each sequence is verified by its own settings. Calls are shared where that changes nothing but their number: one for all greedy
sequences, one for all sampled ones with equally many candidates. A sequence whose rows cannot be verified (NaN, a grammar at its
end) fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import accumulate

import torch

from draftproof.engine.candidates import Work
from draftproof.engine.faults import as_coded
from draftproof.engine.sequence import Sequence
from draftproof.errors import ContractError, DraftproofError, ModelError
from draftproof.models.rows import TargetOutput
from draftproof.verify import sample_checked, verify_greedy


@dataclass(slots=True)
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


@dataclass(eq=False, slots=True)
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
    plain: list[int] = []
    greedy: list[_Rows] = []
    sampled: list[_Rows] = []
    for index, work in enumerate(works):
        sequence = work.sequence
        if sequence.greedy_as_is:
            plain.append(index)
            continue
        try:
            rows = _prepare(index, work, output)
        except Exception as error:  # of a grammar, say: it concerns this sequence alone
            verdicts[index] = Verdict(error=as_coded(error))
        else:
            (greedy if sequence.sampling.is_greedy else sampled).append(rows)
    if plain:
        for index, verdict in zip(plain, _greedy_as_is([works[i] for i in plain], output), strict=True):
            verdicts[index] = verdict
    for rows, verdict in [*_greedy(greedy), *_sampled(sampled)]:
        verdicts[rows.index] = verdict
    return [verdict for verdict in verdicts if verdict is not None]


def _prepare(index: int, work: Work, output: TargetOutput) -> _Rows:
    sequence, logits, drafts = work.sequence, work.logits_of(output), work.drafts
    if sequence.rules is not None:
        adjusted = sequence.rules.apply(logits, drafts)
        logits, drafts = adjusted.logits, drafts[: adjusted.logits.shape[0] - 1]
    return _Rows(index, sequence, sequence.tokens[-1], drafts, logits)


def _greedy_as_is(works: Items[Work], output: TargetOutput) -> list[Verdict]:
    """Greedy sequences whose rows nothing changes: one call on the pass's own logits."""
    outcomes = verify_greedy(
        next_token_logits=output.logits,
        first_rows=[work.first_choice for work in works],
        drafts=[work.drafts for work in works],
    )
    return [_greedy_verdict(*outcome) for outcome in outcomes]


def _greedy(ready: Items[_Rows]) -> list[tuple[_Rows, Verdict]]:
    """Greedy sequences whose rows rules have made anew: one call for all."""
    if not ready:
        return []
    starts = list(accumulate((1 + len(rows.drafts) for rows in ready), initial=0))[:-1]
    outcomes = verify_greedy(
        next_token_logits=_side_by_side([rows.logits for rows in ready]),
        first_rows=starts,
        drafts=[rows.drafts for rows in ready],
    )
    return [(rows, _greedy_verdict(*outcome)) for rows, outcome in zip(ready, outcomes, strict=True)]


def _greedy_verdict(accepted: int, bonus: int) -> Verdict:
    return Verdict(accepted, bonus) if bonus >= 0 else Verdict(error=_nan())


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
    settings = [rows.sequence.sampling for rows in group]
    outcomes = sample_checked(
        candidates=[[rows.anchor, *rows.drafts] for rows in group],
        next_token_logits=_side_by_side([rows.logits for rows in group]),
        temperature=[one.temperature for one in settings],
        top_k=[one.top_k for one in settings],
        top_p=[one.top_p for one in settings],
        min_p=[one.min_p for one in settings],
        seeds=[rows.sequence.seed for rows in group],
        positions=[rows.sequence.output_length for rows in group],
    )
    return [(rows, Verdict(*outcome)) for rows, outcome in zip(group, outcomes, strict=True)]


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
