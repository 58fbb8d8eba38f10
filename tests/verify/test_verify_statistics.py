"""Every rule samples the target distribution: first token, and first two tokens jointly.

The target is a Markov chain over a few tokens, so the distribution of what is committed is known exactly. Each check
is a chi-square test at 1e-9; with 20 of them the chance that a sound build fails is below 1e-7 (seeds are fixed, so
a given build either always passes or always fails). 60,000 samples find a shift of about 2% of the mass.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from draftproof.verify import (
    SamplingInfo,
    compute_dflash_sampling_correct_drafts_and_bonus,
    gumbel_choice,
    target_probs,
    verify_drafter_invariant,
    verify_rejection,
)

LEVEL = 1e-9
SAMPLES = 60_000
VOCAB = 7
N = 3  # anchor and two drafts
SETTINGS = {
    "plain": {"temperature": 1.0},
    "nucleus": {"temperature": 0.8, "top_p": 0.9},
    "top-k and min-p": {"temperature": 1.3, "top_k": 5, "min_p": 0.1},
    "all": {"temperature": 0.9, "top_k": 6, "top_p": 0.95, "min_p": 0.02},
}

TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(4)) * 1.3
DRAFTER = TABLE + torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(5)) * 0.7

Verify = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
Propose = Callable[[torch.Tensor, int], torch.Tensor]


def info(setting: str, batch: int) -> SamplingInfo:
    return SamplingInfo.of(**SETTINGS[setting], batch_size=batch)  # type: ignore[arg-type]


def two_tokens(propose: Propose, verify: Verify) -> torch.Tensor:
    """The first two committed tokens of `SAMPLES` independent sequences that start at token 0, ``[samples, 2]``."""
    anchors = torch.zeros(SAMPLES, dtype=torch.int64)
    first = propose(anchors, 0)
    accepted, bonus = verify(first, TABLE[first.flatten()], 0)
    accepted = accepted.long()
    tokens = torch.where(torch.arange(N - 1) < accepted[:, None], first[:, 1:], bonus[:, None])
    one, two = tokens[:, 0], tokens[:, 1]
    # Where only one token came out, a second step gives the second.
    again = propose(one, 1)
    accepted_again, bonus_again = verify(again, TABLE[again.flatten()], 1)
    second = torch.where(accepted_again > 0, again[:, 1], bonus_again)
    return torch.stack([one, torch.where(accepted == 0, second, two)], 1)


def p_value(tokens: torch.Tensor, expected: torch.Tensor) -> float:
    """Chi-square of counts against exact probabilities; 0 if something impossible was seen."""
    counts = np.bincount(tokens.numpy(), minlength=expected.numel()).astype(float)
    probs = expected.flatten().numpy()
    if counts[probs == 0].sum() > 0:
        return 0.0
    mean = probs * counts.sum()
    common = mean >= 5
    if (~common).any() and mean[~common].sum() > 0:  # pool the rare cells
        counts = np.append(counts[common], counts[~common].sum())
        mean = np.append(mean[common], mean[~common].sum())
    else:
        counts, mean = counts[common], mean[common]
    statistic = ((counts - mean) ** 2 / mean).sum()
    return float(chi2.sf(statistic, len(mean) - 1)) if len(mean) > 1 else 1.0


def check(setting: str, propose: Propose, verify: Verify) -> tuple[float, float]:
    probs = target_probs(TABLE, info(setting, VOCAB))
    tokens = two_tokens(propose, verify)
    first = p_value(tokens[:, 0], probs[0])
    joint = p_value(tokens[:, 0] * VOCAB + tokens[:, 1], probs[0][:, None] * probs)
    return first, joint


def fixed_drafts(anchors: torch.Tensor, step: int) -> torch.Tensor:
    """The most likely token of a drafter that is only roughly right."""
    candidates = [anchors]
    for _ in range(N - 1):
        candidates.append(DRAFTER[candidates[-1]].argmax(-1))
    return torch.stack(candidates, 1)


def any_drafts(anchors: torch.Tensor, step: int) -> torch.Tensor:
    """Tokens that have nothing to do with the target."""
    generator = torch.Generator().manual_seed(100 + step)
    drafts = torch.randint(0, VOCAB, (SAMPLES, N - 1), generator=generator)
    return torch.cat([anchors[:, None], drafts], 1)


@pytest.mark.parametrize("propose", [fixed_drafts, any_drafts])
@pytest.mark.parametrize("setting", SETTINGS)
def test_target_only_samples_the_target(setting: str, propose: Propose) -> None:
    torch.manual_seed(1)

    def verify(
        candidates: torch.Tensor, logits: torch.Tensor, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return compute_dflash_sampling_correct_drafts_and_bonus(
            candidates=candidates, next_token_logits=logits, sampling_info=info(setting, SAMPLES)
        )

    assert min(check(setting, propose, verify)) > LEVEL


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("setting", SETTINGS)
def test_drafter_invariant_samples_the_target(setting: str, coupled: bool) -> None:
    seeds = torch.arange(SAMPLES) * 7919 - 10**6

    def propose(anchors: torch.Tensor, step: int) -> torch.Tensor:
        if not coupled:
            return any_drafts(anchors, step)
        candidates = [anchors]
        for t in range(N - 1):
            candidates.append(
                gumbel_choice(
                    logits=DRAFTER[candidates[-1]],
                    sampling_info=info(setting, SAMPLES),
                    seeds=seeds,
                    positions=torch.full((SAMPLES,), step + t),
                )
            )
        return torch.stack(candidates, 1)

    def verify(
        candidates: torch.Tensor, logits: torch.Tensor, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return verify_drafter_invariant(
            candidates=candidates, next_token_logits=logits, sampling_info=info(setting, SAMPLES), seeds=seeds,
            positions=torch.full((SAMPLES,), step),
        )  # fmt: skip

    assert min(check(setting, propose, verify)) > LEVEL


@pytest.mark.parametrize("setting", SETTINGS)
def test_rejection_samples_the_target(setting: str) -> None:
    torch.manual_seed(3)
    q = target_probs(DRAFTER, SamplingInfo.of(temperature=0.7, top_k=4, batch_size=VOCAB))

    def propose(anchors: torch.Tensor, step: int) -> torch.Tensor:
        candidates = [anchors]
        for _ in range(N - 1):
            candidates.append(torch.multinomial(q[candidates[-1]], 1)[:, 0])
        return torch.stack(candidates, 1)

    def verify(
        candidates: torch.Tensor, logits: torch.Tensor, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return verify_rejection(
            candidates=candidates, next_token_logits=logits, draft_probs=q[candidates[:, :-1]],
            sampling_info=info(setting, SAMPLES),
        )  # fmt: skip

    assert min(check(setting, propose, verify)) > LEVEL


def test_the_check_finds_a_rule_that_is_not_lossless() -> None:
    """Thresholds below 1 shift the distribution; a check that would not notice would prove nothing above."""
    torch.manual_seed(1)

    def verify(
        candidates: torch.Tensor, logits: torch.Tensor, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return compute_dflash_sampling_correct_drafts_and_bonus(
            candidates=candidates,
            next_token_logits=logits,
            sampling_info=info("plain", SAMPLES),
            threshold_acc=0.9,
        )

    assert max(check("plain", fixed_drafts, verify)) < LEVEL


def test_coupled_drafts_agree_as_often_as_the_theory_says() -> None:
    """Daliri, Musco, Suresh 2024: agreement >= (1 - d) / (1 + d) at total-variation distance d."""
    seeds, positions = torch.arange(SAMPLES), torch.zeros(SAMPLES, dtype=torch.int64)
    settings = info("plain", SAMPLES)
    p, q = torch.softmax(TABLE[0].double(), -1), torch.softmax(DRAFTER[0].double(), -1)
    distance = 0.5 * (p - q).abs().sum().item()
    choices = [
        gumbel_choice(
            logits=table[0].expand(SAMPLES, -1), sampling_info=settings, seeds=seeds, positions=positions
        )
        for table in (TABLE, DRAFTER)
    ]
    agreement = (choices[0] == choices[1]).double().mean().item()
    bound = (1 - distance) / (1 + distance)
    assert agreement > bound - 6 * (bound * (1 - bound) / SAMPLES) ** 0.5  # 6 standard errors: 1e-9
    assert agreement <= 1 - distance + 6 * 0.5 / SAMPLES**0.5


def test_missing_coins_come_from_the_global_generator() -> None:
    arguments = {
        "candidates": any_drafts(torch.zeros(SAMPLES, dtype=torch.int64), 0),
        "next_token_logits": torch.randn(SAMPLES * N, VOCAB, generator=torch.Generator().manual_seed(0)),
        "sampling_info": info("plain", SAMPLES),
    }
    torch.manual_seed(11)
    one = compute_dflash_sampling_correct_drafts_and_bonus(**arguments)  # type: ignore[arg-type]
    torch.manual_seed(11)
    two = compute_dflash_sampling_correct_drafts_and_bonus(**arguments)  # type: ignore[arg-type]
    three = compute_dflash_sampling_correct_drafts_and_bonus(**arguments)  # type: ignore[arg-type]
    assert torch.equal(one[1], two[1])
    assert not torch.equal(one[1], three[1])
