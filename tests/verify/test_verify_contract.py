"""Every clause of the contract: the code, the words, the order, and when value checks run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftproof.errors import ContractError
from draftproof.verify import (
    SamplingInfo,
    compute_dflash_correct_drafts_and_bonus,
    compute_dflash_sampling_correct_drafts_and_bonus,
    gumbel_choice,
    target_probs,
    verify_drafter_invariant,
    verify_rejection,
)

BS, N, VOCAB = 2, 4, 50
Arguments = dict[str, Any]


def base() -> Arguments:
    generator = torch.Generator().manual_seed(0)
    return {
        "candidates": torch.randint(0, VOCAB, (BS, N), generator=generator),
        "next_token_logits": torch.randn(BS * N, VOCAB, generator=generator),
        "sampling_info": SamplingInfo.of(temperature=0.8, top_p=0.9, batch_size=BS),
    }


def sampling(**changes: Any) -> Any:
    return compute_dflash_sampling_correct_drafts_and_bonus(**{**base(), **changes})


def invariant(**changes: Any) -> Any:
    seeds = {"seeds": torch.tensor([1, 2]), "positions": torch.tensor([0, 0])}
    return verify_drafter_invariant(**{**base(), **seeds, **changes})


def rejection(**changes: Any) -> Any:
    return verify_rejection(**{**base(), "draft_probs": torch.full((BS, N - 1, VOCAB), 1 / VOCAB), **changes})


SAMPLED = [sampling, invariant, rejection]


def fails(code: str, message: str, call: Any, **arguments: Any) -> None:
    with pytest.raises(ContractError) as caught:
        call(**arguments)
    assert isinstance(caught.value, ValueError)
    assert (caught.value.code, str(caught.value)) == (code, message)


# --- the clauses of the reference, exact words --------------------------------------------------------------------

REFERENCE_CLAUSES: list[tuple[str, str, Arguments]] = [
    (
        "DP101",
        "candidates must be 2D, got shape=(8,)",
        {"candidates": torch.zeros(8, dtype=torch.int64)},
    ),
    (
        "DP102",
        "next_token_logits must be 2D, got shape=(2, 4, 50).",
        {"next_token_logits": torch.zeros(BS, N, VOCAB)},
    ),
    (
        "DP103",
        "batch size must be positive, got 0.",
        {"candidates": torch.zeros(0, N, dtype=torch.int64)},
    ),
    (
        "DP104",
        "draft_token_num must be positive, got 0.",
        {"candidates": torch.zeros(BS, 0, dtype=torch.int64)},
    ),
    (
        "DP105",
        "next_token_logits row count mismatch. Expected 8, got 2.",
        {"next_token_logits": torch.zeros(BS, VOCAB)},
    ),
    (
        "DP106",
        "candidates and next_token_logits must be on the same device, got cpu and meta.",
        {"next_token_logits": torch.zeros(BS * N, VOCAB, device="meta")},
    ),
    (
        "DP107",
        "uniform_samples shape mismatch. Expected (2, 4), got (2, 3).",
        {"uniform_samples": torch.zeros(BS, N - 1)},
    ),
    (
        "DP108",
        "uniform_samples_for_final_sampling shape mismatch. Expected (2,), got (2, 1).",
        {"uniform_samples_for_final_sampling": torch.zeros(BS, 1)},
    ),
]


@pytest.mark.parametrize(
    ("code", "message", "change"), REFERENCE_CLAUSES, ids=[c[0] for c in REFERENCE_CLAUSES]
)
def test_reference_clause(code: str, message: str, change: Arguments) -> None:
    fails(code, message, sampling, **change)
    if code not in ("DP107", "DP108"):
        fails(code, message, invariant, **change)
    fails(code, message, rejection, **change)


def test_the_device_clause_names_both_devices_in_order() -> None:
    message = "candidates and next_token_logits must be on the same device, got meta and cpu."
    fails("DP106", message, sampling, candidates=torch.zeros(BS, N, dtype=torch.int64, device="meta"))


ORDER: list[tuple[str, Arguments]] = [
    ("DP101", {"candidates": torch.zeros(3, dtype=torch.float32)}),
    ("DP102", {"next_token_logits": torch.zeros(3, dtype=torch.int64, device="meta")}),
    ("DP103", {"candidates": torch.zeros(0, 0)}),
    ("DP104", {"candidates": torch.zeros(BS, 0)}),
    ("DP105", {"next_token_logits": torch.zeros(3, VOCAB, dtype=torch.int64, device="meta")}),
    ("DP106", {"next_token_logits": torch.zeros(BS * N, 0, dtype=torch.int64, device="meta")}),
    ("DP107", {"uniform_samples": torch.full((1,), 9)}),
    ("DP108", {"uniform_samples_for_final_sampling": torch.full((1, 1), 9)}),
    ("DP110", {"candidates": torch.zeros(BS, N)}),
    ("DP111", {"next_token_logits": torch.zeros(BS * N, VOCAB, dtype=torch.int64)}),
    ("DP112", {"sampling_info": SamplingInfo.of(temperature=-1.0, batch_size=BS + 1)}),
    ("DP114", {"sampling_info": SamplingInfo.of(temperature=-1.0, top_p=7.0, min_p=3.0, batch_size=BS)}),
    ("DP118", {"threshold_acc": 1.5}),
    ("DP113", {"candidates": torch.full((BS, N), VOCAB)}),
    ("DP121", {"next_token_logits": torch.full((BS * N, VOCAB), torch.nan)}),
]


@pytest.mark.parametrize("first", range(len(ORDER)), ids=[code for code, _ in ORDER])
def test_clauses_are_checked_in_order(first: int) -> None:
    """With a clause and all later ones violated (as far as one call can), the earliest is reported."""
    arguments: Arguments = {}
    for _, change in ORDER[first:]:
        for name, value in change.items():
            arguments.setdefault(name, value)
    with pytest.raises(ContractError) as caught:
        sampling(**arguments)
    assert caught.value.code == ORDER[first][0]


# --- greedy -------------------------------------------------------------------------------------------------------


def greedy(**changes: Any) -> Any:
    tokens = torch.zeros(BS, N, dtype=torch.int64)
    return compute_dflash_correct_drafts_and_bonus(
        **{"candidates": tokens, "target_predict": tokens, **changes}
    )


def test_greedy_clauses() -> None:
    ids = torch.zeros(BS, N, dtype=torch.int64)
    fails("DP101", "candidates must be 2D, got shape=(3,)", greedy, candidates=ids[0, :3])
    fails("DP103", "batch size must be positive, got 0.", greedy, candidates=ids[:0], target_predict=ids)
    fails(
        "DP104", "draft_token_num must be positive, got 0.", greedy, candidates=ids[:, :0], target_predict=ids
    )
    fails(
        "DP109",
        "target_predict must have the same shape as candidates. "
        "candidates.shape=(2, 4), target_predict.shape=(2, 3).",
        greedy,
        target_predict=ids[:, :3],
    )
    fails(
        "DP106",
        "candidates and target_predict must be on the same device, got cpu and meta.",
        greedy,
        target_predict=ids.to("meta"),
    )
    fails(
        "DP110",
        "candidates must be an integer tensor, got dtype=torch.float32.",
        greedy,
        candidates=ids.float(),
    )
    fails(
        "DP110",
        "target_predict must be an integer tensor, got dtype=torch.bool.",
        greedy,
        target_predict=ids > 0,
    )


# --- beyond the reference -----------------------------------------------------------------------------------------


def info(**changes: Any) -> SamplingInfo:
    full = SamplingInfo.of(temperature=0.8, top_k=5, top_p=0.9, min_p=0.1, batch_size=BS)
    return replace(full, **changes)


@pytest.mark.parametrize("call", SAMPLED)
def test_types_and_lengths(call: Any) -> None:
    fails("DP100", "candidates must be a torch.Tensor, got list.", call, candidates=[[1, 2]])
    fails("DP100", "next_token_logits must be a torch.Tensor, got NoneType.", call, next_token_logits=None)
    fails("DP110", "candidates must be an integer tensor, got dtype=torch.float64.", call,
          candidates=torch.zeros(BS, N, dtype=torch.float64))  # fmt: skip
    fails("DP111", "next_token_logits must be a floating-point tensor, got dtype=torch.int32.", call,
          next_token_logits=torch.zeros(BS * N, VOCAB, dtype=torch.int32))  # fmt: skip
    fails("DP120", "next_token_logits must have a vocabulary of at least one token, got shape=(8, 0).", call,
          next_token_logits=torch.zeros(BS * N, 0))  # fmt: skip
    for name in ("temperatures", "top_ks", "top_ps", "min_ps"):
        vector = torch.ones(3, dtype=torch.int64)
        message = f"{name} must have one entry per sequence. Expected 2, got shape=(3,)."
        fails("DP112", message, call, sampling_info=info(**{name: vector}))
        elsewhere = torch.ones(BS, dtype=torch.int64, device="meta")
        message = f"{name} and next_token_logits must be on the same device, got meta and cpu."
        fails("DP106", message, call, sampling_info=info(**{name: elsewhere}))
    fails("DP100", "min_ps must be a torch.Tensor, got NoneType.", call, sampling_info=info(min_ps=None))
    fails("DP110", "top_ks must be an integer tensor, got dtype=torch.float32.", call,
          sampling_info=info(top_ks=torch.ones(BS)))  # fmt: skip


@pytest.mark.parametrize("call", SAMPLED)
@pytest.mark.parametrize(
    ("code", "name", "bad", "words"),
    [
        ("DP114", "temperatures", 0.0, "> 0 and finite, got 0.0."),
        ("DP114", "temperatures", -1.0, "> 0 and finite, got -1.0."),
        ("DP114", "temperatures", float("nan"), "> 0 and finite, got nan."),
        ("DP114", "temperatures", float("inf"), "> 0 and finite, got inf."),
        ("DP115", "top_ks", 0, ">= 1 (use the vocabulary size or more for all), got 0."),
        ("DP115", "top_ks", -1, ">= 1 (use the vocabulary size or more for all), got -1."),
        ("DP116", "top_ps", 0.0, "in (0, 1], got 0.0."),
        ("DP116", "top_ps", 1.5, "in (0, 1], got 1.5."),
        ("DP116", "top_ps", float("nan"), "in (0, 1], got nan."),
        ("DP117", "min_ps", -0.5, "in [0, 1], got -0.5."),
        ("DP117", "min_ps", 1.25, "in [0, 1], got 1.25."),
    ],
)
def test_settings_out_of_range(call: Any, code: str, name: str, bad: float, words: str) -> None:
    vector = getattr(info(), name).clone()
    vector[1] = bad
    fails(code, f"{name} must be {words}", call, sampling_info=info(**{name: vector}))


@pytest.mark.parametrize("call", SAMPLED)
def test_a_false_flag_ignores_its_vector(call: Any) -> None:
    broken = SamplingInfo(
        temperatures=torch.ones(BS, 1),
        top_ks=torch.tensor([-7]),
        top_ps=torch.full((3,), torch.nan),
        min_ps=torch.ones(9, device="meta"),
    )
    call(sampling_info=broken)


def test_sampling_info_may_be_any_object_without_min_p() -> None:
    class Plain:
        temperatures = torch.full((BS, 1), 0.8)
        top_ks = torch.full((BS,), 1 << 30, dtype=torch.int32)
        top_ps = torch.full((BS,), 0.9)
        need_top_k_sampling = False
        need_top_p_sampling = True

    torch.manual_seed(0)
    one = sampling(sampling_info=Plain())
    torch.manual_seed(0)
    two = sampling(sampling_info=SamplingInfo.of(temperature=0.8, top_p=0.9, batch_size=BS))
    assert torch.equal(one[1], two[1])


@pytest.mark.parametrize("call", SAMPLED)
@pytest.mark.parametrize("bad", [-1, VOCAB, 2**40])
@pytest.mark.parametrize("column", [0, 2])
def test_tokens_out_of_the_vocabulary(call: Any, bad: int, column: int) -> None:
    candidates = torch.zeros(BS, N, dtype=torch.int64)
    candidates[1, column] = bad
    message = f"candidates must be token ids in [0, 50), got {bad} at sequence 1, column {column}."
    fails("DP113", message, call, candidates=candidates)


@pytest.mark.parametrize("name", ["threshold_single", "threshold_acc"])
@pytest.mark.parametrize("bad", [-0.1, 1.5, float("nan"), float("inf")])
def test_thresholds_out_of_range(name: str, bad: float) -> None:
    fails("DP118", f"{name} must be in [0, 1], got {bad}.", sampling, **{name: bad})


def test_thresholds_at_the_ends_are_fine() -> None:
    for value in (0.0, 1.0, None):
        sampling(threshold_single=value, threshold_acc=value)


@pytest.mark.parametrize("call", [sampling, rejection])
def test_coins(call: Any) -> None:
    for bad in (-0.5, 1.5, float("nan")):
        coins = torch.zeros(BS, N)
        coins[1, 1] = bad
        fails("DP119", f"uniform_samples must be in [0, 1), got {bad}.", call, uniform_samples=coins)
        message = f"uniform_samples_for_final_sampling must be in [0, 1), got {bad}."
        fails("DP119", message, call, uniform_samples_for_final_sampling=torch.tensor([0.0, bad]))
    fails("DP111", "uniform_samples must be a floating-point tensor, got dtype=torch.int64.", call,
          uniform_samples=torch.zeros(BS, N, dtype=torch.int64))  # fmt: skip
    fails("DP106", "uniform_samples and next_token_logits must be on the same device, got meta and cpu.", call,
          uniform_samples=torch.zeros(BS, N, device="meta"))  # fmt: skip


def test_seeds_positions_and_draft_lengths() -> None:
    for name in ("seeds", "positions", "draft_lens"):
        message = f"{name} must have one entry per sequence. Expected 2, got shape=(3,)."
        fails("DP112", message, invariant, **{name: torch.zeros(3, dtype=torch.int64)})
        message = f"{name} must be an integer tensor, got dtype=torch.float32."
        fails("DP110", message, invariant, **{name: torch.zeros(2)})
        message = f"{name} and next_token_logits must be on the same device, got meta and cpu."
        fails("DP106", message, invariant, **{name: torch.zeros(2, dtype=torch.int64, device="meta")})
    fails("DP124", "positions must be >= 0, got -2.", invariant, positions=torch.tensor([0, -2]))
    for call in (invariant, rejection):
        for bad in (-1, 4):
            message = f"draft_lens must be in [0, 3] (the anchor is not counted), got {bad}."
            fails("DP125", message, call, draft_lens=torch.tensor([3, bad]))


def test_draft_probs() -> None:
    q = torch.full((BS, N - 1, VOCAB), 1 / VOCAB)
    fails("DP126", "draft_probs shape mismatch. Expected (2, 3, 50), got (2, 4, 50).", rejection,
          draft_probs=torch.zeros(BS, N, VOCAB))  # fmt: skip
    fails("DP111", "draft_probs must be a floating-point tensor, got dtype=torch.int64.", rejection,
          draft_probs=q.long())  # fmt: skip
    fails("DP106", "draft_probs and next_token_logits must be on the same device, got meta and cpu.", rejection,
          draft_probs=q.to("meta"))  # fmt: skip


def test_draft_probability_of_the_draft_must_be_positive(path: str) -> None:
    candidates = torch.full((BS, N), 3)
    for bad in (0.0, -0.1, float("nan")):
        q = torch.full((BS, N - 1, VOCAB), 1 / VOCAB)
        q[1, 0, 3] = bad
        message = (
            "draft_probs must be positive at the drafted token, got q(3) <= 0 or NaN at sequence 1, draft 0."
        )
        fails("DP128", message, rejection, draft_probs=q, candidates=candidates)
    # Where the length says there is no draft, nobody asks.
    rejection(draft_probs=torch.zeros(BS, N - 1, VOCAB), draft_lens=torch.tensor([0, 0]))


def test_a_draft_row_that_is_read_must_be_sound(path: str) -> None:
    logits = torch.full((BS * N, VOCAB), -5.0)
    logits[:, 7] = 5.0
    candidates = torch.full((BS, N), 3)  # all but impossible for the target, so the row is read
    for bad in (-0.1, float("nan"), float("inf")):
        q = torch.full((BS, N - 1, VOCAB), 1 / VOCAB)
        q[0, 0, 9] = bad
        message = "draft_probs must be finite and >= 0, got a row that is not at sequence 0, draft 0."
        fails("DP129", message, rejection, draft_probs=q, candidates=candidates, next_token_logits=logits,
              uniform_samples=torch.full((BS, N), 0.99))  # fmt: skip


# --- logit rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", SAMPLED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("settings", [{}, {"top_k": 1}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.2}])
def test_bad_rows(call: Any, dtype: torch.dtype, settings: Arguments, path: str) -> None:
    sampling_info = SamplingInfo.of(temperature=0.8, batch_size=BS, **settings)
    for bad, code, words in (
        (float("nan"), "DP121", "next_token_logits has NaN in row 4."),
        (-float("nan"), "DP121", "next_token_logits has NaN in row 4."),
        (float("inf"), "DP122", "next_token_logits has +inf in row 4."),
    ):
        logits = base()["next_token_logits"].to(dtype)
        logits[4, 13] = bad
        fails(code, words, call, next_token_logits=logits, sampling_info=sampling_info)
    logits = base()["next_token_logits"].to(dtype)
    logits[4] = -torch.inf
    fails("DP123", "next_token_logits has no finite logit in row 4.", call, next_token_logits=logits,
          sampling_info=sampling_info)  # fmt: skip
    logits[4, 3] = -3.0
    candidates = torch.full((BS, N), 3)
    call(next_token_logits=logits, sampling_info=sampling_info, candidates=candidates)


def test_nan_with_either_sign_is_found_at_any_place(path: str) -> None:
    seeds = {"seeds": torch.tensor([1]), "positions": torch.tensor([0])}
    for place in (0, 1, 63, 64, 511, 512, 998, 999):
        for sign in (1, -1):
            logits = torch.zeros(1, 1000)
            logits[0, place] = torch.tensor(0x7FC00000, dtype=torch.int32).view(torch.float32) * sign
            if sign < 0:
                logits.view(torch.int32)[0, place] = -4194304  # the bits of a NaN with its sign bit set
            assert torch.isnan(logits[0, place])
            fails("DP121", "logits has NaN in row 0.", gumbel_choice, logits=logits,
                  sampling_info=SamplingInfo.of(temperature=0.8), **seeds)  # fmt: skip


def test_the_earliest_bad_level_is_reported(path: str) -> None:
    arguments = base()
    logits, candidates = arguments["next_token_logits"], arguments["candidates"]
    candidates[:, 1:] = logits.view(BS, N, VOCAB)[:, :-1].argmax(-1)
    logits[2] = torch.nan  # sequence 0, level 2
    logits[5] = torch.inf  # sequence 1, level 1
    fails("DP122", "next_token_logits has +inf in row 5.", sampling, candidates=candidates, next_token_logits=logits,
          uniform_samples=torch.zeros(BS, N))  # fmt: skip


def test_free_standing_rows() -> None:
    seeds = {"seeds": torch.tensor([1]), "positions": torch.tensor([0])}
    one = SamplingInfo.of()
    fails(
        "DP102",
        "logits must be 2D, got shape=(5,).",
        gumbel_choice,
        logits=torch.zeros(5),
        sampling_info=one,
        **seeds,
    )
    fails("DP103", "batch size must be positive, got 0.", gumbel_choice, logits=torch.zeros(0, 5), sampling_info=one,
          **seeds)  # fmt: skip
    fails("DP111", "logits must be a floating-point tensor, got dtype=torch.int64.", gumbel_choice,
          logits=torch.zeros(1, 5, dtype=torch.int64), sampling_info=one, **seeds)  # fmt: skip
    fails("DP123", "logits has no finite logit in row 0.", target_probs,
          logits=torch.full((1, 5), -torch.inf), sampling_info=one)  # fmt: skip


# --- debug mode ---------------------------------------------------------------------------------------------------


def test_promises_about_top_k_are_checked_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SamplingInfo.of(temperature=0.8, top_k=[5, 20])
    sampling(sampling_info=settings, max_top_k=10)
    sampling(sampling_info=settings, uniform_top_k_value=5)
    monkeypatch.setenv("DRAFTPROOF_DEBUG", "1")
    sampling(sampling_info=settings, max_top_k=20)
    fails(
        "DP127",
        "max_top_k=10 does not hold for top_ks, got [5, 20].",
        sampling,
        sampling_info=settings,
        max_top_k=10,
    )
    fails("DP127", "uniform_top_k_value=5 does not hold for top_ks, got [5, 20].", sampling, sampling_info=settings,
          uniform_top_k_value=5)  # fmt: skip


def test_value_checks_off_the_cpu_only_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.verify.contract import values_checked

    assert values_checked(torch.device("cpu"))
    monkeypatch.delenv("DRAFTPROOF_DEBUG", raising=False)
    assert not values_checked(torch.device("cuda"))
    monkeypatch.setenv("DRAFTPROOF_DEBUG", "1")
    assert values_checked(torch.device("cuda"))


def test_extra_arguments_never_change_results() -> None:
    torch.manual_seed(0)
    plain = sampling(sampling_info=SamplingInfo.of(top_k=7, batch_size=BS))
    for extra in ({"max_top_k": 7}, {"uniform_top_k_value": 7}, {"use_sparse_topk": False}):
        torch.manual_seed(0)
        other = sampling(sampling_info=SamplingInfo.of(top_k=7, batch_size=BS), **extra)
        assert torch.equal(plain[0], other[0])
        assert torch.equal(plain[1], other[1])


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        compute_dflash_correct_drafts_and_bonus(torch.zeros(1, 1), torch.zeros(1, 1))  # type: ignore[misc]
