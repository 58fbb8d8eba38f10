"""A row's bits depend on its own sequence alone: not on company, chunks, threads, pages, or what lies in unwritten memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from draftproof.models.fused import FusedTarget, Precision
from draftproof.models.rows import Segment
from support.fused import KINDS, ODD_VOCAB, make_fused
from support.scattered import rows_in_scattered_pages
from support.tiny import random_tokens

LENGTH = 90
ALL = pytest.mark.parametrize("precision", list(Precision), ids=lambda p: p.value)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def tokens_of(count: int, seed: int = 0) -> torch.Tensor:
    return random_tokens(count, seed, ODD_VOCAB)


def whole(target: FusedTarget, tokens: torch.Tensor, taps: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    output = target.forward([Segment(target.new_sequence(), tokens, 0)], taps)
    assert output.features is not None
    return output.logits, output.features


@ALL
@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_chunks_or_company(kind: str, precision: Precision) -> None:
    target, _ = make_fused(kind, precision)
    tokens, taps = tokens_of(LENGTH), (1, 3)
    straight = whole(target, tokens, taps)
    for lengths in ([1] * LENGTH, [8] * 11 + [2], [3, 64, 23], [17, 1, 40, 32]):
        kv, others, pieces = target.new_sequence(), [target.new_sequence() for _ in range(3)], []
        for step, length in enumerate(lengths):
            torch.set_num_threads(1 + step % 2)
            mine = Segment(kv, tokens[kv.length : kv.length + length], 0)
            company = [
                Segment(other, tokens_of(1 + (step + i) % 9, step + i), 0) for i, other in enumerate(others)
            ]
            before = step % 4
            output = target.forward([*company[:before], mine, *company[before:]], taps)
            first = sum(segment.count for segment in company[:before])
            assert output.features is not None
            pieces.append((output.logits[first : first + length], output.features[first : first + length]))
            for sequence in (kv, *others):
                sequence.commit_to(sequence.written if sequence.written < 400 else 0)
        for index in range(2):
            assert torch.equal(straight[index], torch.cat([piece[index] for piece in pieces])), lengths


@ALL
def test_pool_full_of_nan_and_private_pages_give_the_same_rows(precision: Precision) -> None:
    target, _ = make_fused("gemma3", precision)
    assert target.self_test()
    tokens = tokens_of(LENGTH)
    straight, _ = whole(target, tokens, (0,))
    assert torch.equal(rows_in_scattered_pages(target, tokens), straight)


@ALL
def test_a_pass_longer_than_the_scratch_memory(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.models.fused import target as module

    target, _ = make_fused("llama", precision)
    a, b = tokens_of(LENGTH), tokens_of(50, seed=1)
    (rows_a, taps_a), (rows_b, taps_b) = whole(target, a, (1,)), whole(target, b, (1,))
    monkeypatch.setattr(module, "MAX_ROWS", 37)
    segments = [Segment(target.new_sequence(), a, 20), Segment(target.new_sequence(), b, 3)]
    output = target.forward(segments, (1,))
    assert output.features is not None
    assert torch.equal(output.logits, torch.cat([rows_a[20:], rows_b[3:]]))
    assert torch.equal(output.features, torch.cat([taps_a, taps_b]))


@ALL
def test_rejected_candidates_leave_no_trace(precision: Precision) -> None:
    target, _ = make_fused("mistral", precision)
    tokens = tokens_of(LENGTH)
    straight, _ = whole(target, tokens, (0,))
    kv, rows = target.new_sequence(), []
    for position in range(LENGTH):
        drafts = torch.cat([tokens[position : position + 1], tokens_of(7, seed=position)])
        rows.append(target.forward([Segment(kv, drafts, 0)]).logits[:1])
        kv.commit_to(position + 1)
    assert torch.equal(straight, torch.cat(rows))


@ALL
@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_numbers_that_are_none_stay_with_their_sequence(precision: Precision, spoilt: float) -> None:
    target, _ = make_fused("qwen3", precision)
    clean = tokens_of(20)
    before, _ = whole(target, clean, (0,))
    bad = int(next(token for token in range(3, ODD_VOCAB) if token not in clean.tolist()))
    target.info.embedding[bad, 5] = spoilt
    other = torch.tensor([bad, 4, 5])
    segments = [Segment(target.new_sequence(), other, 0), Segment(target.new_sequence(), clean, 0)]
    logits = target.forward(segments).logits
    assert not logits[:3].isfinite().any()
    assert torch.equal(logits[3:], before)
