"""The target over real architectures: same logits as Transformers, rows that never depend on company."""

from __future__ import annotations

import pytest
import torch

from draftproof.models import kernels
from draftproof.models.kv import SequenceKV
from draftproof.models.rows import Segment
from draftproof.models.target import Target
from support.scattered import rows_in_scattered_pages
from support.tiny import CONFIGS, VOCAB, make_model, make_target, random_tokens

LENGTH = 90
BOTH = [torch.float32, torch.bfloat16]


def run(
    target: Target, kv: SequenceKV, tokens: torch.Tensor, taps: tuple[int, ...] = ()
) -> tuple[torch.Tensor, ...]:
    output = target.forward([Segment(kv, tokens, 0)], taps)
    kv.commit_to(kv.written)
    return (output.logits,) if output.features is None else (output.logits, output.features)


@pytest.mark.parametrize("kind", CONFIGS)
def test_agrees_with_transformers(kind: str) -> None:
    tokens = random_tokens(LENGTH)
    reference = make_model(kind)
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        expected = reference(input_ids=tokens[None], use_cache=False, output_hidden_states=True)
    taps = (0, 2, 3, 0)
    target = make_target(kind)
    logits, features = run(target, target.new_sequence(), tokens, taps)
    torch.testing.assert_close(logits, expected.logits[0], atol=2e-4, rtol=1e-4)
    hidden = torch.cat([expected.hidden_states[layer + 1][0] for layer in taps], dim=-1)
    torch.testing.assert_close(features, hidden, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("kind", CONFIGS)
def test_rows_do_not_depend_on_chunks_or_company(kind: str, dtype: torch.dtype) -> None:
    target = make_target(kind, dtype)
    tokens, taps = random_tokens(LENGTH), (1, 3)
    whole = run(target, target.new_sequence(), tokens, taps)
    for lengths in ([1] * LENGTH, [8] * 11 + [2], [3, 64, 23], [17, 1, 40, 32]):
        kv, others, pieces = target.new_sequence(), [target.new_sequence() for _ in range(3)], []
        for step, length in enumerate(lengths):
            mine = Segment(kv, tokens[kv.length : kv.length + length], 0)
            company = [
                Segment(other, random_tokens(1 + (step + i) % 9, step + i), 0)
                for i, other in enumerate(others)
            ]
            before = step % 4
            output = target.forward([*company[:before], mine, *company[before:]], taps)
            first = sum(segment.count for segment in company[:before])
            assert output.features is not None
            pieces.append((output.logits[first : first + length], output.features[first : first + length]))
            for sequence in (kv, *others):
                sequence.commit_to(sequence.written if sequence.written < 400 else 0)
        for index in range(2):
            assert torch.equal(whole[index], torch.cat([piece[index] for piece in pieces])), (lengths, index)


@pytest.mark.parametrize("dtype", BOTH, ids=str)
def test_rejected_candidates_leave_no_trace(dtype: torch.dtype) -> None:
    target = make_target("gemma3", dtype)
    tokens = random_tokens(LENGTH)
    (straight,) = run(target, target.new_sequence(), tokens)
    kv, rows = target.new_sequence(), []
    for position in range(LENGTH):
        drafts = torch.cat([tokens[position : position + 1], random_tokens(7, seed=position)])
        rows.append(target.forward([Segment(kv, drafts, 0)]).logits[:1])
        kv.commit_to(position + 1)
    assert torch.equal(straight, torch.cat(rows))


def test_gives_the_rows_that_were_asked_for() -> None:
    target = make_target("llama")
    a, b = random_tokens(9), random_tokens(5, seed=1)
    (whole_a,), (whole_b,) = run(target, target.new_sequence(), a), run(target, target.new_sequence(), b)
    segments = [Segment(target.new_sequence(), a, 8), Segment(target.new_sequence(), b, 2)]
    assert torch.equal(target.forward(segments).logits, torch.cat([whole_a[8:], whole_b[2:]]))
    none = target.forward([Segment(target.new_sequence(), a, 9)], taps=(1,))
    assert none.logits.shape == (0, VOCAB)
    assert none.features is not None
    assert none.features.shape == (9, 64)


def test_a_failed_pass_changes_no_sequence() -> None:
    target = make_target("llama")
    kv = target.new_sequence()
    (first,) = run(target, kv, random_tokens(6))
    with pytest.raises(IndexError):
        target.forward([Segment(kv, torch.tensor([VOCAB + 5]), 0)])
    assert kv.length == 6
    (after,) = run(target, kv, random_tokens(4, seed=3))
    (whole,) = run(target, target.new_sequence(), torch.cat([random_tokens(6), random_tokens(4, seed=3)]))
    assert torch.equal(whole, torch.cat([first, after]))


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("kind", ["llama", "llama-odd", "gemma2", "gpt-oss", "olmoe"])
def test_pool_and_private_pages_give_the_same_rows(kind: str, dtype: torch.dtype) -> None:
    """Sequences in scattered pages of a pool full of NaN, beside one with pages of its own, one table growing as it goes."""
    target = make_target(kind, dtype)
    assert target.self_test()
    tokens = random_tokens(LENGTH)
    (whole,) = run(target, target.new_sequence(), tokens)
    assert torch.equal(rows_in_scattered_pages(target, tokens), whole)


def test_a_pool_backed_table_must_reach() -> None:
    target = make_target("llama")
    kv = SequenceKV(target.new_pages(3), [2])
    with pytest.raises(RuntimeError, match="the table has 1"):
        target.forward([Segment(kv, random_tokens(65), 0)])
    assert (kv.length, kv.written) == (0, 0)
    assert target.page_bytes == 4 * 2 * 64 * (16 + 16) * 4


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_works_without_the_compiled_kernel(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = random_tokens(LENGTH)
    target = make_target(kind)
    (expected,) = run(target, target.new_sequence(), tokens)
    monkeypatch.setattr(kernels, "_compiled", lambda: None)
    plain = make_target(kind)
    assert plain.self_test()
    (logits,) = run(plain, plain.new_sequence(), tokens)
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)
