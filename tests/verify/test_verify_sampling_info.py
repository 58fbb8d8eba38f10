"""Settings from plain numbers, and the module configuration."""

from __future__ import annotations

import pytest
import torch

from draftproof.verify import TOP_K_ALL, SamplingInfo, target_probs
from draftproof.verify.config import DEFAULTS


def test_defaults_are_lossless() -> None:
    assert (DEFAULTS.threshold_single, DEFAULTS.threshold_acc) == (1.0, 1.0)


def test_numbers_hold_for_the_batch() -> None:
    info = SamplingInfo.of(temperature=0.7, top_k=20, top_p=0.9, min_p=0.1, batch_size=3)
    assert info.temperatures.shape == (3, 1)
    assert info.top_ks.tolist() == [20] * 3
    assert info.top_ps.tolist() == [0.9] * 3
    assert info.min_ps is not None
    assert info.min_ps.tolist() == [0.1] * 3
    assert info.need_top_k_sampling
    assert info.need_top_p_sampling
    assert info.need_min_p_sampling


def test_flags_follow_the_values() -> None:
    info = SamplingInfo.of(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0)
    assert info.top_ks.tolist() == [TOP_K_ALL]
    flags = (info.need_top_k_sampling, info.need_top_p_sampling, info.need_min_p_sampling)
    assert flags == (False, False, False)
    assert SamplingInfo.of(top_k=-1).top_ks.tolist() == [TOP_K_ALL]
    assert SamplingInfo.of(top_k=2**40).top_ks.tolist() == [TOP_K_ALL]


def test_temperature_zero_becomes_the_argmax() -> None:
    info = SamplingInfo.of(temperature=[0.0, 0.5], top_k=[50, 0])
    assert info.temperatures.flatten().tolist() == [1.0, 0.5]
    assert info.top_ks.tolist() == [1, TOP_K_ALL]
    probs = target_probs(torch.tensor([[1.0, 4.0, 4.0], [0.0, 0.0, 0.0]]), info)
    assert probs[0].tolist() == [0.0, 1.0, 0.0]
    assert probs[1].tolist() == [1 / 3] * 3


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="length"):
        SamplingInfo.of(temperature=[0.5, 0.6], top_p=[0.9, 0.9, 0.9])


def test_top_p_is_taken_over_the_top_k_survivors() -> None:
    """p = (.4, .3, .2, .1); top-k 2 leaves (4/7, 3/7), of which top-p 0.5 keeps only the first."""
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    assert target_probs(logits, SamplingInfo.of(top_k=2, top_p=0.5))[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    probs = target_probs(logits, SamplingInfo.of(top_p=0.5))[0]
    torch.testing.assert_close(
        probs, torch.tensor([4 / 7, 3 / 7, 0.0, 0.0], dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, -0.0, 0.0]])
    assert target_probs(logits, SamplingInfo.of(top_k=2))[0].tolist() == [0.0, 0.5, 0.5, 0.0, 0.0, 0.0]
    flat = torch.zeros(1, 8)
    assert (target_probs(flat, SamplingInfo.of(top_p=0.3))[0] > 0).tolist() == [True] * 3 + [False] * 5


def test_at_least_one_token_survives() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    info = SamplingInfo.of(temperature=2.0, top_p=1e-9, min_p=1.0, batch_size=5)
    assert ((target_probs(logits, info) > 0).sum(-1) == 1).all()
