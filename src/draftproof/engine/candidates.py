"""Candidates and the rows that belong to them, carried together from draft to verification.

A row count that does not match the candidates and rows that live on another device are faults of engines that pass the two
along separately. Here `Work` decides which rows the target's pass computes (`segments_of`) and knows which rows of what comes
back are its own (`logits_of`, `first_choice`, `first_row`); there is no other way from the target to verification, so neither
fault can be written down.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import torch

from draftproof.engine.drafting import Draft
from draftproof.engine.scheduler import Chunk
from draftproof.engine.sequence import Sequence
from draftproof.models.rows import Segment, TargetOutput


@dataclass(eq=False, slots=True)
class Work:
    """What one sequence has in a pass: pending tokens, and behind the last of them, the anchor, its draft tokens.

    Attributes:
        chunk: the pending tokens.
        draft: what is to be verified behind the anchor; nothing unless the chunk decodes.
        logits_from: index of the first own row with a logit row: the anchor's; 0 where prompt log-probabilities are wanted.
        first_row: the pass's row of the chunk's first token.
        first_logit: which logit row of the pass is this sequence's first.
        rows: rows in the pass.
    """

    chunk: Chunk
    draft: Draft
    logits_from: int
    first_row: int
    first_logit: int
    rows: int

    @property
    def sequence(self) -> Sequence:
        return self.chunk.sequence

    @property
    def drafts(self) -> list[int]:
        """The draft tokens."""
        return self.draft.tokens

    @property
    def logit_rows(self) -> int:
        return self.rows - self.logits_from

    def for_choice(self, sequence: Sequence) -> Work:
        """The same rows as the first choice's, for another choice of the request: both go on from the prompt's last token."""
        return replace(self, chunk=replace(self.chunk, sequence=sequence))

    @property
    def first_choice(self) -> int:
        """The logit row after the anchor; the drafts' follow it. Only where the chunk is the last."""
        return self.first_logit + self.chunk.count - 1 - self.logits_from

    def logits_of(self, output: TargetOutput) -> torch.Tensor:
        """The logit rows of the anchor and the drafts, ``[1 + len(drafts), vocab]``; none unless the chunk is the last."""
        end = self.first_logit + self.logit_rows
        return output.logits[self.first_choice if self.chunk.last else end : end]

    def prompt_logits_of(self, output: TargetOutput) -> torch.Tensor:
        """The logit rows of the chunk's tokens, ``[count, vocab]``, where prompt log-probabilities are wanted; else none."""
        count = self.chunk.count if self.logits_from == 0 else 0
        return output.logits[self.first_logit : self.first_logit + count]


def lay_out(chunks: Items[Chunk], drafts: Items[Draft]) -> list[Work]:
    """The sequences' work for one pass, rows in order; `drafts` one for each chunk."""
    laid: list[Work] = []
    row = logit = 0
    for chunk, mine in zip(chunks, drafts, strict=True):
        rows, logits_from = chunk.count + len(mine.tokens), _logits_from(chunk)
        laid.append(Work(chunk, mine, logits_from, row, logit, rows))
        row += rows
        logit += rows - logits_from
    return laid


def _logits_from(chunk: Chunk) -> int:
    if chunk.decodes:
        return 0
    if chunk.sequence.request.lacks_prompt_logprobs:
        return 0
    return chunk.count - 1 if chunk.last else chunk.count


def segments_of(works: Items[Work], device: torch.device) -> list[Segment]:
    """The sequences' parts of the pass. Their tokens become one tensor, of which each has its stretch."""
    tokens: list[int] = []
    for work in works:
        sequence = work.sequence
        start = sequence.running_memory.kv.length
        tokens += sequence.tokens[start : start + work.chunk.count]
        tokens += work.drafts
    flat = torch.tensor(tokens, dtype=torch.long, device=device)
    parts = flat.split([work.rows for work in works]) if len(works) > 1 else (flat,)
    return [
        Segment(work.sequence.running_memory.kv, part, work.logits_from)
        for work, part in zip(works, parts, strict=True)
    ]
