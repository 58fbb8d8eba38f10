"""One step of decoding: draft, verify, commit. And the prefill before the first."""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from draftproof.engine.candidates import Candidates, lay_out
from draftproof.engine.results import PhaseSeconds, TextPiece
from draftproof.engine.sequence import Sequence
from draftproof.engine.stops import finish_reason
from draftproof.errors import DrafterError, ModelError
from draftproof.models.drafters.base import Drafter, DraftProposal, DraftRequest
from draftproof.models.rows import Segment, TargetOutput
from draftproof.models.target import Target
from draftproof.verify import compute_dflash_correct_drafts_and_bonus, verify_drafter_invariant

PREFILL_CHUNK = 512
"""Prompt tokens per pass; bounds memory. Where the cuts fall makes no difference to any row."""


@dataclass(frozen=True)
class CommittedBlock:
    """What a step added to one sequence.

    Attributes:
        token_ids: kept tokens, cut at a stop or limit.
        pieces: the text that may be shown now, token by token.
    """

    token_ids: list[int]
    pieces: list[TextPiece]


class _Clock:
    """Adds the time since the last mark to a phase of every sequence in the step."""

    def __init__(self, sequences: Items[Sequence]) -> None:
        self._seconds = [sequence.stats.seconds for sequence in sequences]
        self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        now = time.perf_counter()
        for seconds in self._seconds:
            _add(seconds, phase, now - self._last)
        self._last = now


def _add(seconds: PhaseSeconds, phase: str, spent: float) -> None:
    setattr(seconds, phase, getattr(seconds, phase) + spent)


def prefill(target: Target, drafter: Drafter | None, sequence: Sequence) -> CommittedBlock:
    """Process the prompt and commit the first token.

    The last prompt token is verified like an anchor without drafts, so the first token comes from the same rule as all others.
    """
    clock = _Clock([sequence])
    prompt = torch.tensor(sequence.prompt_token_ids, device=target.device)
    chunks = prompt.split(PREFILL_CHUNK)
    for index, chunk in enumerate(chunks):
        last = index == len(chunks) - 1
        start = sequence.kv.length
        segment = Segment(sequence.kv, chunk, chunk.shape[0] - 1 if last else chunk.shape[0])
        output = target.forward([segment], _taps(drafter))
        _keep(drafter, sequence, output.features, start, chunk.shape[0])
    anchor = Candidates(prompt[-1:], 0)
    _, bonus = _verify(sequence, anchor, output.logits)
    block = _commit(sequence, [bonus], drafted=0)
    clock.mark("prefill")
    return block


def decode_step(target: Target, drafter: Drafter | None, sequences: Items[Sequence]) -> list[CommittedBlock]:
    """Draft, verify and commit once for every sequence, in one pass of the target.

    Sequences share the pass and nothing else: each gives the tokens it would give alone.

    Args:
        target: the target.
        drafter: the drafter, or None.
        sequences: prefilled and unfinished.
    """
    clock = _Clock(sequences)
    candidates = lay_out(
        [sequence.anchor for sequence in sequences], _draft(drafter, sequences, target), target.device
    )
    clock.mark("draft")
    output = target.forward(
        [mine.segment(s.kv) for mine, s in zip(candidates, sequences, strict=True)], _taps(drafter)
    )
    clock.mark("target")
    verdicts = [_verify(s, mine, mine.rows_of(output)) for s, mine in zip(sequences, candidates, strict=True)]
    clock.mark("verify")
    blocks = [
        _accept(drafter, sequence, mine, output, verdict)
        for sequence, mine, verdict in zip(sequences, candidates, verdicts, strict=True)
    ]
    clock.mark("commit")
    return blocks


def _taps(drafter: Drafter | None) -> tuple[int, ...]:
    return drafter.tap_layer_ids if drafter else ()


def _draft(drafter: Drafter | None, sequences: Items[Sequence], target: Target) -> list[torch.Tensor]:
    """Draft tokens for every sequence; an empty tensor where there are none."""
    drafts = [torch.empty(0, dtype=torch.long, device=target.device) for _ in sequences]
    if drafter is None:
        return drafts
    room = [sequence.draft_room(drafter.max_draft_tokens) for sequence in sequences]
    asking = [index for index, count in enumerate(room) if count > 0]
    requests = [
        DraftRequest(
            state=sequences[index].draft_state,
            tokens=tuple(sequences[index].tokens),
            num_draft_tokens=room[index],
            output_position=sequences[index].output_length,
            sampling=sequences[index].draft_sampling(),
        )
        for index in asking
    ]
    if requests:
        proposals = drafter.propose(requests)
        if len(proposals) != len(requests):
            raise _bad_proposal(f"{len(proposals)} proposals for {len(requests)} sequences")
        for index, proposal in zip(asking, proposals, strict=True):
            drafts[index] = _checked(proposal, target)[: room[index]]
    return drafts


def _checked(proposal: DraftProposal, target: Target) -> torch.Tensor:
    """A proposal's tokens, fit to be candidates: drafters of other people's making may be wrong, and must not harm more
    than their own request."""
    tokens = proposal.tokens
    if (
        not isinstance(tokens, torch.Tensor)
        or tokens.dim() != 1
        or tokens.dtype not in (torch.int64, torch.int32)
    ):
        raise _bad_proposal(
            f"tokens of shape {getattr(tokens, 'shape', None)} and type {getattr(tokens, 'dtype', type(tokens))}"
        )
    vocab_size = target.structure.vocab_size
    tokens = tokens.to(device=target.device, dtype=torch.int64)
    if bool(((tokens < 0) | (tokens >= vocab_size)).any()):
        raise _bad_proposal(f"token ids outside 0..{vocab_size - 1}: {tokens.tolist()}")
    return tokens


def _bad_proposal(came: str) -> DrafterError:
    return DrafterError(
        "DP318", f"a drafter must propose one int64 tensor [k] of token ids per sequence, got {came}"
    )


def _verify(sequence: Sequence, candidates: Candidates, logits: torch.Tensor) -> tuple[int, int]:
    """Accepted length and bonus token of one sequence; `logits` are the candidates' own rows."""
    if sequence.sampling.is_greedy:
        # The first of equal maxima, hence the lowest id. In float32, where argmax is several times faster on a CPU.
        predict = logits.float().argmax(dim=-1)
        _refuse_nan(logits, predict)
        accepted, bonus = compute_dflash_correct_drafts_and_bonus(
            candidates=candidates.matrix, target_predict=predict[None]
        )
    else:
        accepted, bonus = verify_drafter_invariant(
            candidates=candidates.matrix,
            next_token_logits=logits,
            sampling_info=sequence.sampling_info,
            seeds=torch.tensor([sequence.sampling.seed], device=logits.device),
            positions=torch.tensor([sequence.output_length], device=logits.device),
        )
    return int(accepted[0]), int(bonus[0])


def _refuse_nan(logits: torch.Tensor, predict: torch.Tensor) -> None:
    """A NaN counts as the maximum, so looking at the maxima finds it."""
    if logits.gather(-1, predict[:, None]).isnan().any():
        raise ModelError(
            "DP262", "the target gave NaN logits: its weights or its dtype are broken; try dtype='float32'"
        )


def _accept(
    drafter: Drafter | None,
    sequence: Sequence,
    mine: Candidates,
    output: TargetOutput,
    verdict: tuple[int, int],
) -> CommittedBlock:
    """Commit what verification kept: tokens, the target's keys and values, the drafter's."""
    accepted, bonus = verdict
    start = sequence.kv.length
    kept = [*mine.token_ids[1 : 1 + accepted].tolist(), bonus]
    block = _commit(sequence, kept, drafted=accepted)
    _keep(drafter, sequence, mine.features_of(output), start, 1 + accepted)
    stats = sequence.stats
    kept_drafts = min(accepted, len(block.token_ids))
    stats.target_steps += 1
    stats.drafted_tokens += mine.count - 1
    stats.accepted_tokens += kept_drafts
    stats.accepted_lengths.append(kept_drafts)
    stats.decode_tokens += len(block.token_ids)
    return block


def _keep(
    drafter: Drafter | None, sequence: Sequence, features: torch.Tensor | None, start: int, count: int
) -> None:
    """Keep `count` processed tokens from position `start` on, in the target's cache and the drafter's; forget the rest."""
    sequence.kv.commit_to(start + count)
    if drafter is not None:
        drafter.extend(sequence.draft_state, None if features is None else features[:count], start)


def _commit(sequence: Sequence, token_ids: list[int], drafted: int) -> CommittedBlock:
    """Append tokens one by one until one of them ends the request; the first `drafted` of them were drafts."""
    kept: list[int] = []
    pieces: list[TextPiece] = []
    for index, token in enumerate(token_ids):
        sequence.tokens.append(token)
        kept.append(token)
        text = _take_in(sequence, token)
        if text:
            pieces.append(TextPiece(text, index < drafted))
        if sequence.finish_reason is not None:
            break
    return CommittedBlock(kept, pieces)


def _take_in(sequence: Sequence, token: int) -> str:
    """The text that the token just appended makes certain; sets `finish_reason` when it is the last one."""
    reason = finish_reason(
        token, sequence.output_length - 1, end_tokens=sequence.end_token_ids, max_tokens=sequence.output_limit
    )
    shown = sequence.text.push(token, is_end_token=token in sequence.end_token_ids)
    if reason is None and not shown.stopped:
        return shown.text
    text = shown.text + sequence.text.finish()  # what was held back may itself complete a stop string
    sequence.finish_reason = "stop" if sequence.text.stop_string is not None else reason
    return text
