"""RowRules: order of operations, what each row sees, and that drafts leave no trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor, MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from draftproof.errors import RequestError
from draftproof.sampling import ResolvedSampling, RowRules, SamplingDefaults, SamplingParams

VOCAB = 40
ENDS = frozenset({0, 1})
TOKENS = st.integers(0, VOCAB - 1)
WORDS = st.lists(TOKENS, max_size=12)


def resolved(**fields: Any) -> ResolvedSampling:
    return SamplingParams(max_tokens=100, **fields).resolve(SamplingDefaults(), vocab_size=VOCAB)


def rules_of(sampling: ResolvedSampling, prompt: Sequence[int], output: Sequence[int] = ()) -> RowRules:
    rules = RowRules.of(sampling, prompt, ENDS, None, VOCAB)
    assert rules is not None
    rules.advance(output)
    return rules


def reference(row: Sequence[float], s: ResolvedSampling, prompt: list[int], output: list[int]) -> list[float]:
    """One row by dictionaries and single float32 numbers, in the order of the design."""
    counts = Counter(output)
    logits = {token: np.float32(value) for token, value in enumerate(row)}
    for token in {*prompt, *output}:
        factor = np.float32(s.repetition_penalty)
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token in counts:
        logits[token] -= np.float32(s.presence_penalty)
    for token, count in counts.items():
        logits[token] -= np.float32(count) * np.float32(s.frequency_penalty)
    for token, bias in s.logit_bias:
        logits[token] += np.float32(bias)
    for token in logits:
        forbidden = token in s.banned_token_ids
        forbidden |= s.allowed_token_ids is not None and token not in s.allowed_token_ids
        forbidden |= len(output) < s.min_tokens and token in ENDS | s.stop_token_ids
        if forbidden:
            logits[token] = np.float32("-inf")
    return [float(logits[token]) for token in range(len(logits))]


SAMPLINGS = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.floats(0.5, 2),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(TOKENS, st.floats(-100, 100), max_size=4),
        "allowed_token_ids": st.lists(st.integers(2, VOCAB - 1), min_size=7).map(lambda ids: [*ids, 3]),
        "banned_token_ids": st.lists(st.integers(0, VOCAB - 1).filter(lambda i: i != 3), max_size=6),
        "min_tokens": st.integers(0, 15),
        "stop_token_ids": st.lists(st.integers(5, 7), max_size=2),
    },
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SAMPLINGS, WORDS, WORDS, st.lists(TOKENS, max_size=7), st.integers(0, 2**31))
def test_rows_equal_the_reference_and_those_of_single_steps_bitwise(
    fields: dict[str, Any], prompt: list[int], output: list[int], drafts: list[int], noise: int
) -> None:
    sampling = resolved(**fields)
    raw = torch.randn(1 + len(drafts), VOCAB, generator=torch.Generator().manual_seed(noise)) * 5
    before = raw.clone()
    rules = RowRules.of(sampling, prompt, ENDS, None, VOCAB)
    if rules is None:
        assert (
            not set(fields) - {"stop_token_ids"}
            or reference(raw[0].tolist(), sampling, prompt, []) == raw[0].tolist()
        )
        return
    rules.advance(output)
    adjusted = rules.apply(raw, drafts)
    assert torch.equal(raw, before)
    ends = ENDS | sampling.stop_token_ids
    assert adjusted.drafts == next((t for t, d in enumerate(drafts) if d in ends), len(drafts))
    assert adjusted.logits.shape == (1 + adjusted.drafts, VOCAB)
    step = rules_of(sampling, prompt, output)
    for t in range(1 + adjusted.drafts):
        expected = reference(raw[t].tolist(), sampling, prompt, output + drafts[:t])
        assert adjusted.logits[t].tolist() == expected
        alone = step.apply(raw[t : t + 1], [])
        assert (alone.drafts, alone.logits.tolist()) == (0, [expected])
        step.advance(drafts[t : t + 1])
    assert torch.equal(rules.apply(raw, drafts).logits, adjusted.logits)  # nothing was kept of the drafts


def test_at_the_real_width_rows_equal_those_of_single_steps_bitwise() -> None:
    generator = torch.Generator().manual_seed(3)
    vocab = 49_152
    sampling = SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.1, logit_bias={5: 3.3}, min_tokens=4
    ).resolve(SamplingDefaults(), vocab_size=vocab)
    prompt = torch.randint(2, vocab, (500,), generator=generator).tolist()
    drafts = [*torch.randint(2, vocab, (6,), generator=generator).tolist(), prompt[0]]
    raw = (torch.randn(8, vocab, generator=generator) * 4).bfloat16()
    together = RowRules(sampling, prompt, ENDS, None, vocab).apply(raw, drafts)
    step = RowRules(sampling, prompt, ENDS, None, vocab)
    assert together.drafts == 7
    for t in range(8):
        assert torch.equal(step.apply(raw[t : t + 1], []).logits[0], together.logits[t])
        step.advance(drafts[t : t + 1])


@pytest.mark.parametrize("vocab", [5000, 5024, 49_152])
@pytest.mark.parametrize("count", [1, 2000, 2047, 2048, 2049, 4000])
def test_few_and_many_masked_tokens_are_masked_alike(vocab: int, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    chosen = (torch.randperm(vocab - 2, generator=generator)[:count] + 2).tolist()
    raw = torch.randn(3, vocab, generator=generator)
    for name in ("allowed_token_ids", "banned_token_ids"):
        sampling = SamplingParams(**{name: [*chosen, 0]}, min_tokens=2).resolve(
            SamplingDefaults(), vocab_size=vocab
        )
        rows = RowRules(sampling, [5], ENDS, None, vocab).apply(raw, [7, 8]).logits
        inside = torch.zeros(vocab, dtype=torch.bool)
        inside[[*chosen, 0]] = True
        late = inside if name == "allowed_token_ids" else ~inside
        early = late.clone()
        early[[0, 1]] = False
        for row, source, kept in zip(rows, raw, (early, early, late), strict=True):
            assert torch.equal(row, torch.where(kept, source, float("-inf")))


def with_transformers(processor: LogitsProcessor, rows: torch.Tensor, texts: list[list[int]]) -> torch.Tensor:
    return torch.cat(
        [processor(torch.tensor([text]), row[None]) for text, row in zip(texts, rows, strict=True)]
    )


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    raw = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(4)) * 5
    prompt, output, drafts = [4, 5, 5, 9], [7, 4], [8, 8, 30, 9]
    mine = rules_of(resolved(repetition_penalty=1.37), prompt, output).apply(raw, drafts)
    texts = [prompt + output + drafts[:t] for t in range(5)]
    theirs = with_transformers(RepetitionPenaltyLogitsProcessor(1.37), raw.clone(), texts)
    assert torch.equal(mine.logits, theirs)


def test_min_tokens_are_those_of_transformers() -> None:
    raw = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(5))
    prompt, output, drafts = [4, 5], [7], [8, 8, 30, 9]
    mine = rules_of(resolved(min_tokens=3), prompt, output).apply(raw, drafts)
    processor = MinNewTokensLengthLogitsProcessor(2, 3, sorted(ENDS))
    texts = [prompt + output + drafts[:t] for t in range(5)]
    assert torch.equal(mine.logits, with_transformers(processor, raw.clone(), texts))
    assert mine.logits[:, 0].isinf().tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.5, "top_p": 0.5, "stop_token_ids": [4], "n": 3, "logprobs": 2},
        {"repetition_penalty": 1, "logit_bias": {}, "banned_token_ids": [], "min_tokens": 0},
    ],
)
def test_a_request_without_rules_has_none(fields: dict[str, Any]) -> None:
    assert RowRules.of(resolved(**fields), [1, 2], ENDS, None, VOCAB) is None


def test_an_end_token_among_the_drafts_ends_the_rows() -> None:
    raw = torch.zeros(5, VOCAB)
    rules = rules_of(resolved(presence_penalty=1, stop_token_ids=[9]), [2])
    assert rules.apply(raw, [3, 4, 0, 5]).drafts == 2
    assert rules.apply(raw, [9, 4, 0, 5]).drafts == 0
    assert rules.apply(raw, [3, 4, 5, 6]).drafts == 4


def test_stop_tokens_count_as_end_tokens_for_min_tokens() -> None:
    rules = rules_of(resolved(min_tokens=2, stop_token_ids=[9]), [2], [3])
    blocked = rules.apply(torch.zeros(2, VOCAB), [4]).logits.isinf()
    assert blocked[0].nonzero()[:, 0].tolist() == [0, 1, 9]
    assert not blocked[1].any()


def test_rules_that_leave_no_token_are_refused_at_once() -> None:
    with pytest.raises(RequestError, match="min_tokens=5 leaves no token to choose") as caught:
        RowRules.of(resolved(allowed_token_ids=[0, 1], min_tokens=5), [2], ENDS, None, VOCAB)
    assert caught.value.code == "DP448"
    assert RowRules.of(resolved(allowed_token_ids=[0, 1]), [2], ENDS, None, VOCAB) is not None


def test_infinite_logits_do_not_become_nan() -> None:
    raw = torch.full((3, VOCAB), float("-inf"))
    raw[:, 5] = 1.0
    fields = {
        "repetition_penalty": 1.5,
        "presence_penalty": -2,
        "frequency_penalty": -2,
        "logit_bias": {7: 100},
    }
    adjusted = rules_of(resolved(**fields), [5, 6], [7, 8]).apply(raw, [5, 9])
    assert not adjusted.logits.isnan().any()
    assert adjusted.logits.isfinite().sum(dim=1).tolist() == [1, 1, 1]


def test_many_tokens_are_counted_right() -> None:
    output = [token for token in range(2, VOCAB) for _ in range(token)]
    rules = rules_of(resolved(frequency_penalty=0.5), [3], output[:7])
    rules.advance(output[7:])
    row = rules.apply(torch.zeros(1, VOCAB), []).logits[0]
    assert row.tolist() == [0.0, 0.0, *(-0.5 * token for token in range(2, VOCAB))]
