"""A sequence cut in pieces, in scattered pages of a pool full of NaN, beside others."""

from __future__ import annotations

import torch

from draftproof.models.executor import TargetModel
from draftproof.models.kv import KEY_BLOCK, SequenceKV
from draftproof.models.rows import Segment


def rows_in_scattered_pages(target: TargetModel, tokens: torch.Tensor) -> torch.Tensor:
    """Logit rows of the first 90 tokens, beside another of the pool and one with pages of its own; its table grows as it goes."""
    pool = target.new_pages(9)
    pool.fill(torch.nan)
    mine, other, own = SequenceKV(pool, [7]), SequenceKV(pool, [0, 4, 2]), target.new_sequence()
    rows = []
    for length in (40, 1, 9, 8, 20, 12):
        if mine.length + length > KEY_BLOCK:
            mine.table[1:] = [3]
        chunk = tokens[mine.length : mine.length + length]
        segments = [Segment(other, chunk, length), Segment(own, chunk, length - 1), Segment(mine, chunk, 0)]
        rows.append(target.forward(segments).logits[1:])
        for kv in (mine, other, own):
            kv.commit_to(kv.written)
    return torch.cat(rows)
