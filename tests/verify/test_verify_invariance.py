"""What results may not depend on: neighbours, thread count, layout, rows that are not read; and the drafts themselves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verify_cases import RULES, Case, cases, lay_out, make_case, outcome

from draftproof.verify import SamplingInfo, gumbel_choice, target_probs, verify_drafter_invariant

quick = settings(max_examples=60, deadline=None, derandomize=True)


def one_sequence(case: Case, b: int) -> Case:
    n = case.n
    info = case.info
    return Case(
        candidates=case.candidates[b : b + 1],
        logits=case.logits[b * n : (b + 1) * n],
        info=SamplingInfo(
            info.temperatures[b : b + 1],
            info.top_ks[b : b + 1],
            info.top_ps[b : b + 1],
            None if info.min_ps is None else info.min_ps[b : b + 1],
            info.need_top_k_sampling,
            info.need_top_p_sampling,
            info.need_min_p_sampling,
        ),
        settings=case.settings[b : b + 1],
        seeds=case.seeds[b : b + 1],
        positions=case.positions[b : b + 1],
        lens=case.lens[b : b + 1],
        coins=case.coins[b : b + 1],
        finals=case.finals[b : b + 1],
        draft_probs=case.draft_probs[b : b + 1],
    )


@pytest.mark.parametrize("rule", RULES)
@quick
@given(case=cases)
def test_batch_neighbours_do_not_matter(rule: str, case: Case) -> None:
    accepted, bonus = outcome(case, rule)
    for b in range(len(case.settings)):
        assert outcome(one_sequence(case, b), rule) == ([accepted[b]], [bonus[b]])


@pytest.mark.parametrize("rule", RULES)
def test_batch_neighbours_do_not_matter_in_plain_torch(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.verify.kernels.available", lambda logits: False)

    @quick
    @given(case=cases)
    def check(case: Case) -> None:
        accepted, bonus = outcome(case, rule)
        for b in range(len(case.settings)):
            assert outcome(one_sequence(case, b), rule) == ([accepted[b]], [bonus[b]])

    check()


@pytest.mark.parametrize("rule", RULES)
@quick
@given(case=cases)
def test_inputs_are_never_modified(rule: str, case: Case) -> None:
    tensors = [
        case.candidates, case.logits, case.info.temperatures, case.info.top_ks, case.info.top_ps, case.info.min_ps,
        case.seeds, case.positions, case.lens, case.coins, case.finals, case.draft_probs,
    ]  # fmt: skip
    before = [t.clone() for t in tensors if t is not None]
    outcome(case, rule)
    for old, new in zip(before, [t for t in tensors if t is not None], strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("rule", RULES)
@quick
@given(case=cases)
def test_rows_past_the_first_rejection_are_not_read(rule: str, case: Case) -> None:
    accepted, bonus = outcome(case, rule)
    spoiled = case.logits.clone()
    q = case.draft_probs.clone()
    for b, kept in enumerate(accepted):
        spoiled[b * case.n + kept + 1 : (b + 1) * case.n] = torch.nan
        q[b, kept + 1 :] = torch.nan
    case.logits, case.draft_probs = spoiled, q
    assert outcome(case, rule) == (accepted, bonus)


@pytest.mark.parametrize("rule", ["drafter-invariant", "rejection"])
@quick
@given(case=cases, junk=st.sampled_from([-1, 2**40, -(2**63)]))
def test_columns_past_a_draft_length_are_ignored(rule: str, case: Case, junk: int) -> None:
    expected = outcome(case, rule)
    past = torch.arange(case.n) > case.lens[:, None]
    case.candidates = torch.where(past, junk, case.candidates)
    assert outcome(case, rule) == expected


@pytest.mark.parametrize("rule", RULES)
def test_thread_count_does_not_matter(rule: str) -> None:
    threads = torch.get_num_threads()
    case = make_case(5, 6, 4, 60_000, "normal", torch.float32, "plain")
    results = []
    try:
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            results.append(outcome(case, rule))
    finally:
        torch.set_num_threads(threads)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["strided-rows", "strided-columns", "transposed", "offset"])
def test_memory_layout_does_not_matter(layout: str, dtype: torch.dtype) -> None:
    for seed in range(4):
        case = make_case(seed, 3, 4, 3000, "normal", dtype, "plain")
        expected = [outcome(case, rule) for rule in RULES]
        case.logits = lay_out(case.logits, layout)
        assert not case.logits.is_contiguous() or layout == "offset"
        assert [outcome(case, rule) for rule in RULES] == expected


def test_half_precision_logits_count_at_their_exact_value() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        rows = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype)
        rows = rows[torch.isfinite(rows)].view(1, -1)  # every finite value there is, subnormals among them
        info = SamplingInfo.of(temperature=3.0, top_p=0.9)
        for seed in range(20):
            arguments = {"sampling_info": info, "seeds": torch.tensor([seed]), "positions": torch.tensor([3])}
            exact = gumbel_choice(logits=rows.to(torch.float32), **arguments)
            assert torch.equal(gumbel_choice(logits=rows, **arguments), exact)


# --- drafter invariance -------------------------------------------------------------------------------------------

VOCAB = 700


def next_logits(previous: torch.Tensor) -> torch.Tensor:
    """A stand-in for a language model: logits that depend on the previous token alone."""
    rows = [torch.randn(VOCAB, generator=torch.Generator().manual_seed(int(t))) * 3 for t in previous]
    return torch.stack(rows)


def decode(
    length: int,
    info: SamplingInfo,
    seeds: torch.Tensor,
    n: int,
    drafts_seed: int | None,
    ragged: bool = False,
) -> list[list[int]]:
    """Decode a batch; drafts are right, nearly right or random. `drafts_seed` None never drafts."""
    generator = torch.Generator().manual_seed(drafts_seed or 0)
    bs = seeds.shape[0]
    texts: list[list[int]] = [[] for _ in range(bs)]
    while min(len(text) for text in texts) < length:
        anchors = torch.tensor([text[-1] if text else 11 + b for b, text in enumerate(texts)])
        positions = torch.tensor([len(text) for text in texts])
        candidates = torch.randint(0, VOCAB, (bs, n), generator=generator)
        candidates[:, 0] = anchors
        for t in range(n - 1):
            likely = gumbel_choice(
                logits=next_logits(candidates[:, t]), sampling_info=info, seeds=seeds, positions=positions + t
            )
            right = torch.rand(bs, generator=generator) < 0.75
            candidates[:, t + 1] = torch.where(right, likely, candidates[:, t + 1])
        lens = torch.randint(0, n, (bs,), generator=generator) if ragged else None
        accepted, bonus = verify_drafter_invariant(
            candidates=candidates,
            next_token_logits=next_logits(candidates.flatten()),
            sampling_info=info,
            seeds=seeds,
            positions=positions,
            draft_lens=lens,
        )
        for b in range(bs):
            texts[b] += [*candidates[b, 1 : 1 + int(accepted[b])].tolist(), int(bonus[b])]
    return [text[:length] for text in texts]


def test_same_seed_same_text_whatever_drafts(path: str) -> None:
    info = SamplingInfo.of(
        temperature=[0.8, 0.0, 1.0, 1.3],
        top_p=[0.95, 1.0, 1.0, 0.9],
        top_k=[0, 0, 20, 0],
        min_p=[0.0, 0.0, 0.0, 0.02],
    )
    seeds = torch.tensor([1, 2, -3, 2**62])
    expected = decode(24, info, seeds, 1, None)
    assert len({tuple(text) for text in expected}) == 4
    for n, drafts_seed, ragged in ((2, 1, False), (4, 2, True), (8, 3, False)):
        assert decode(24, info, seeds, n, drafts_seed, ragged) == expected


def test_the_choice_of_a_row_is_gumbel_choice(path: str) -> None:
    case = make_case(3, 4, 1, 5000, "normal", torch.float32, "plain")
    _, bonus = verify_drafter_invariant(
        candidates=case.candidates, next_token_logits=case.logits, sampling_info=case.info, seeds=case.seeds,
        positions=case.positions,
    )  # fmt: skip
    choice = gumbel_choice(
        logits=case.logits, sampling_info=case.info, seeds=case.seeds, positions=case.positions
    )
    assert torch.equal(bonus, choice)
    assert choice.dtype == torch.int64


def test_temperature_zero_is_the_lowest_argmax(path: str) -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [-0.0, 0.0, -1.0, -0.0]])
    choice = gumbel_choice(
        logits=logits, sampling_info=SamplingInfo.of(temperature=0, batch_size=2), seeds=torch.tensor([5, 6]),
        positions=torch.tensor([0, 0]),
    )  # fmt: skip
    assert choice.tolist() == [1, 0]


@pytest.mark.parametrize("top_k", [1, 2, 100])
def test_signed_zeros_tie_across_a_large_row(top_k: int, path: str) -> None:
    """-0.0 equals 0.0: the lower id goes first wherever in the row it stands."""
    logits = torch.full((1, 1000), -9.0)
    logits[0, [70, 500, 900]] = torch.tensor([-0.0, 0.0, -0.0])
    logits[0, 300] = torch.tensor(1, dtype=torch.int32).view(torch.float32) * -1  # the negative next to zero
    probs = target_probs(logits, SamplingInfo.of(top_k=top_k))
    expected = [70, 500, 900, 300, 0][: min(top_k, 4)]
    assert all(probs[0, v] > 0 for v in expected)
    seen = {
        int(gumbel_choice(
            logits=logits, sampling_info=SamplingInfo.of(top_k=top_k), seeds=torch.tensor([seed]),
            positions=torch.tensor([0]),
        ))
        for seed in range(200)
    }  # fmt: skip
    assert seen == set(expected) if top_k < 100 else seen >= set(expected)


def test_a_row_chooses_the_same_in_any_company() -> None:
    """Bitwise promise behind losslessness: many rows, once alone and once in one batch among other settings."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 20_000, generator=generator) * 2.5
    info = SamplingInfo.of(
        temperature=[0.7 + 0.02 * i for i in range(40)], top_p=[0.9 + 0.002 * i for i in range(40)]
    )
    seeds, positions = torch.arange(40), torch.arange(40) * 3
    together = gumbel_choice(logits=rows, sampling_info=info, seeds=seeds, positions=positions)
    for i in range(40):
        alone = SamplingInfo.of(temperature=info.temperatures[i].item(), top_p=info.top_ps[i].item())
        choice = gumbel_choice(
            logits=rows[i : i + 1],
            sampling_info=alone,
            seeds=seeds[i : i + 1],
            positions=positions[i : i + 1],
        )
        assert choice.item() == together[i].item()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("rule", RULES)
def test_cuda_agrees_with_cpu(rule: str) -> None:
    for seed in range(10):
        case = make_case(seed, 3, 4, 2000, "normal", torch.float32, "plain")
        expected = outcome(case, rule)
        for name in ("candidates", "logits", "seeds", "positions", "lens", "coins", "finals", "draft_probs"):
            setattr(case, name, getattr(case, name).cuda())
        case.info = SamplingInfo.of(
            temperature=[s.temperature for s in case.settings],
            top_k=[s.top_k or 0 for s in case.settings],
            top_p=[s.top_p or 1.0 for s in case.settings],
            min_p=[s.min_p or 0.0 for s in case.settings],
            device="cuda",
        )
        assert outcome(case, rule) == expected
