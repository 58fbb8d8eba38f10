"""Muon and AdamW as one optimiser, and the rate over time."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from draftproof.errors import RequestError
from draftproof.train.optimizers import OptimizerSettings, build_optimizer, orthogonal, rate_factor, scheduled


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 4, bias=False))


def loss_of(model: nn.Module) -> torch.Tensor:
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    return (model(x) - x[:, :4].sin()).square().mean()


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32), (1, 9)])
def test_orthogonal_matrices_have_singular_values_near_one(shape):
    generator = torch.Generator().manual_seed(0)
    made = orthogonal(torch.randn(3, *shape, generator=generator) * 100).float()
    values = torch.linalg.svdvals(made)
    # The quintic's coefficients leave singular values within 0.3 of 1, small ones aside; bfloat16 adds its rounding.
    assert values.max() < 1.35
    assert values.median() > 0.6


def test_orthogonal_keeps_the_directions():
    """It is the polar factor of the matrix, not just any orthogonal one."""
    u, _, v = torch.linalg.svd(
        torch.randn(12, 20, generator=torch.Generator().manual_seed(0)), full_matrices=False
    )
    made = orthogonal((u @ torch.diag(torch.linspace(0.3, 1, 12)) @ v)[None])[0].float()
    alignment = (u.mT @ made @ v.mT).diagonal()
    assert alignment.min() > 0.6
    assert (made - u @ torch.diag(alignment) @ v).norm() < 0.15 * made.norm()


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_it_learns(kind):
    model = small_model()
    optimizer = build_optimizer(model, OptimizerSettings(kind=kind, learning_rate=2e-2))
    first = float(loss_of(model).detach())
    for _ in range(150):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(loss_of(model).detach()) < 0.2 * first


def test_what_is_no_matrix_moves_as_in_torchs_adamw():
    model, other = small_model(), small_model()
    ours = build_optimizer(model, OptimizerSettings(kind="muon", learning_rate=1e-2))
    norm = other[1]
    theirs = torch.optim.AdamW(norm.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(5):
        for name, parameter in model[1].named_parameters():
            gradient = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
            parameter.grad = gradient.clone()
            norm.get_parameter(name).grad = gradient.clone()
        ours.step()
        theirs.step()
    for name, parameter in model[1].named_parameters():
        torch.testing.assert_close(parameter, norm.get_parameter(name))


def test_muons_update_is_as_large_as_adamws():
    weight = nn.Parameter(torch.zeros(96, 160))
    optimizer = build_optimizer(
        nn.ParameterList([weight]), OptimizerSettings(kind="muon", learning_rate=1e-2)
    )
    weight.grad = torch.randn(96, 160, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    size = weight.detach().square().mean().sqrt() / 1e-2
    assert 0.1 < size < 0.4


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_restored_optimizer_goes_on_as_if_never_stopped(kind):
    choice = OptimizerSettings(kind=kind, learning_rate=1e-2, weight_decay=0.1)
    model = small_model()
    optimizer = build_optimizer(model, choice)
    schedule = scheduled(optimizer, 20, 3)

    def go(model, optimizer, schedule, steps):
        for _ in range(steps):
            loss_of(model).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    go(model, optimizer, schedule, 5)
    kept = copy.deepcopy([part.state_dict() for part in (model, optimizer, schedule)])
    go(model, optimizer, schedule, 5)
    again = small_model(9)
    restored = build_optimizer(again, choice)
    other = scheduled(restored, 20, 3)
    for part, state in zip((again, restored, other), kept, strict=True):
        part.load_state_dict(state)
    go(again, restored, other, 5)
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_decay_is_for_matrices_only(kind):
    model = small_model()
    optimizer = build_optimizer(model, OptimizerSettings(kind=kind, learning_rate=1e-1, weight_decay=0.5))
    before = [parameter.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(new, old * 0.95 if old.ndim == 2 else old)


def test_frozen_parameters_and_missing_gradients_stay():
    for kind in ("adamw", "muon"):
        model = small_model()
        model[0].weight.requires_grad_(False)
        before = copy.deepcopy(model.state_dict())
        optimizer = build_optimizer(model, OptimizerSettings(kind=kind))
        model[2].weight.grad = torch.ones_like(model[2].weight)
        optimizer.step()
        changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
        assert changed == ["2.weight"]


def test_muon_needs_whole_matrices():
    with pytest.raises(RequestError) as error:
        build_optimizer(
            nn.ParameterList([nn.Parameter(torch.zeros(2, 3, 4))]), OptimizerSettings(kind="muon")
        )
    assert error.value.code == "DP516"


def test_the_rate_warms_up_and_falls_as_a_cosine():
    factors = [rate_factor(step, 100, 10, 0.1) for step in range(101)]
    assert factors[0] == pytest.approx(1 / 11)
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.55)
    assert factors[100] == pytest.approx(0.1)
    assert all(a < b for a, b in pairwise(factors[:11]))
    assert all(a > b for a, b in pairwise(factors[10:]))
    assert rate_factor(500, 100, 10, 0.1) == pytest.approx(0.1)


@pytest.mark.parametrize(("total", "warmup"), [(10, 10), (5, 9), (0, 0 + 1), (10, -1)])
def test_schedules_that_cannot_be(total, warmup):
    with pytest.raises(RequestError) as error:
        rate_factor(0, total, warmup)
    assert error.value.code == "DP516"


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "adam"},
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"betas": (0.9, 1.0)},
        {"momentum": -0.1},
        {"weight_decay": -1},
        {"newton_schulz_steps": 0},
    ],
)
def test_settings_out_of_range(options):
    with pytest.raises(RequestError) as error:
        OptimizerSettings(**options)
    assert error.value.code == "DP516"
