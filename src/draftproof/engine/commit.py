"""Committing tokens: the output grows token by token until one of them ends it."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftproof.engine.candidates import Work
from draftproof.engine.results import TextPiece
from draftproof.engine.sequence import Sequence
from draftproof.engine.stops import finish_reason
from draftproof.models.rows import TargetOutput
from draftproof.sampling import TokenLogprobs, token_logprobs


@dataclass(slots=True)
class CommittedBlock:
    """What a step added to one sequence.

    Attributes:
        token_ids: kept tokens, cut at a stop or limit.
        pieces: the text that may be shown now, token by token.
        logprobs: of the kept tokens; empty unless asked for.
    """

    token_ids: list[int]
    pieces: list[TextPiece]
    logprobs: list[TokenLogprobs] = field(default_factory=list)


def commit_tokens(
    sequence: Sequence, token_ids: list[int], drafted: int, work: Work, output: TargetOutput
) -> CommittedBlock:
    """Append tokens one by one until one of them ends the output.

    Args:
        sequence: grows by the kept tokens; `finish_reason` is set when one of them is the last.
        token_ids: accepted drafts and the bonus.
        drafted: how many of them, from the first, were drafts.
        work, output: where the logit rows are that they were chosen from.
    """
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
    if sequence.rules is not None and sequence.finish_reason is None:
        sequence.rules.advance(kept)
        if sequence.rules.is_exhausted and not sequence.end_token_ids:
            # A complete form normally ends with an end token; this model has none.
            sequence.finish_reason = "stop"
            pieces.append(TextPiece(sequence.text.finish(), False))
    wanted = sequence.sampling.logprobs
    if wanted is None:
        return CommittedBlock(kept, pieces)
    logprobs = token_logprobs(work.logits_of(output)[: len(kept)], kept, wanted)
    sequence.logprobs += logprobs
    return CommittedBlock(kept, pieces, logprobs)


def _take_in(sequence: Sequence, token: int) -> str:
    """The text that the token just appended makes certain; sets `finish_reason` when it is the last one."""
    ends, output = sequence.end_token_ids, sequence.text
    reason = finish_reason(
        token, sequence.output_length - 1, end_tokens=ends, max_tokens=sequence.output_limit
    )
    text = output.take(token, token in ends)
    if reason is None and output.stop_string is None:
        return text
    text += output.finish()  # what was held back may itself complete a stop string
    sequence.finish_reason = "stop" if output.stop_string is not None else reason
    return text
