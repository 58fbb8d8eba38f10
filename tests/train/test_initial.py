"""Where training starts: what a fresh drafter computes, held against the target's own layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from draftproof.train.blocks import lay_out
from draftproof.train.features import Sample
from draftproof.train.initial import initial_tensors
from draftproof.train.layout import shape_for
from draftproof.train.model import TrainableDrafter
from draftproof.train.target_weights import TargetWeights, read_target_weights
from support.tiny import make_model


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model and what is read of its last three layers."""
    folder = tmp_path_factory.mktemp("target")
    model = make_model("llama")
    with torch.no_grad():  # norms that differ by layer and channel, as trained ones do
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(0.3 + torch.rand(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return model, read_target_weights(str(folder), 3)


def samples_of(model, count: int = 3, taps=(0, 1)) -> list[Sample]:
    """Random texts and the hidden states behind some layers."""
    made = []
    for seed in range(count):
        ids = torch.randint(3, 300, (40,), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            states = model(ids[None], output_hidden_states=True).hidden_states
        made.append(Sample(ids, 10, torch.cat([states[tap + 1][0] for tap in taps], -1)))
    return made


def shape_of(target: TargetWeights, layers: int = 3, taps=(0, 1)):
    return shape_for(target, num_layers=layers, block_size=6, mask_token_id=3, taps=taps)


def test_context_keys_and_values_are_the_targets_own(pair):
    """The last tap is the input of the first layer copied, so that layer's keys and values of it are known."""
    model, target = pair
    shape, samples = shape_of(target, taps=(0,)), samples_of(model, taps=(0,))
    tensors = initial_tensors(shape, target, samples, noise=0.0)
    features = samples[0].features
    context = functional.rms_norm(
        features @ tensors["fc.weight"].T, (64,), tensors["hidden_norm.weight"], shape.rms_norm_eps
    )
    layer = model.model.layers[1]
    with torch.no_grad():
        normed = layer.input_layernorm(features)
        for part in ("k", "v"):
            want = getattr(layer.self_attn, f"{part}_proj")(normed)
            got = context @ tensors[f"layers.0.self_attn.{part}_proj.weight"].T
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_a_block_row_is_projected_as_in_the_target(pair):
    model, target = pair
    tensors = initial_tensors(shape_of(target), target)
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(0))
    for index, layer in enumerate(model.model.layers[1:]):
        own = f"layers.{index}."
        with torch.no_grad():
            want = layer.self_attn.q_proj(layer.input_layernorm(x))
            mlp = layer.mlp(layer.post_attention_layernorm(x))
        normed = functional.rms_norm(x, (64,), tensors[f"{own}input_layernorm.weight"], target.rms_norm_eps)
        torch.testing.assert_close(
            normed @ tensors[f"{own}self_attn.q_proj.weight"].T, want, atol=1e-4, rtol=1e-4
        )
        h = functional.rms_norm(
            x, (64,), tensors[f"{own}post_attention_layernorm.weight"], target.rms_norm_eps
        )
        gate, up, down = (tensors[f"{own}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        torch.testing.assert_close(
            (functional.silu(h @ gate.T) * (h @ up.T)) @ down.T, mlp, atol=1e-4, rtol=1e-4
        )


def test_gains_are_the_sizes_of_queries_and_keys(pair):
    model, target = pair
    shape, samples = shape_of(target, taps=(1, 2)), samples_of(model, 4, (1, 2))
    tensors = initial_tensors(shape, target, samples)
    layer = model.model.layers[-1]
    states = torch.cat([part.features[:, -64:] for part in samples])
    with torch.no_grad():
        normed = layer.input_layernorm(states)
        for part in ("q", "k"):
            heads = getattr(layer.self_attn, f"{part}_proj")(normed).view(len(states), -1, 16)
            gain = tensors[f"layers.2.self_attn.{part}_norm.weight"]
            assert len(gain.unique()) == 1
            want = heads.square().mean(-1).sqrt().mean()
            assert float(gain[0]) == pytest.approx(float(want), rel=1e-3)


def test_without_samples_the_sizes_are_estimated(pair):
    model, target = pair
    measured = initial_tensors(shape_of(target), target, samples_of(model))
    guessed = initial_tensors(shape_of(target), target)
    for part in ("q", "k"):
        name = f"layers.1.self_attn.{part}_norm.weight"
        assert 0.3 < float(guessed[name][0] / measured[name][0]) < 3


def test_the_targets_score_scale_is_kept(pair):
    _, target = pair
    plain = initial_tensors(shape_of(target), target)
    scaled = initial_tensors(shape_of(target), replace(target, score_scale=2 * target.score_scale))
    name = "layers.0.self_attn.q_norm.weight"
    torch.testing.assert_close(scaled[name], 2 * plain[name])
    assert torch.equal(scaled["layers.0.self_attn.k_norm.weight"], plain["layers.0.self_attn.k_norm.weight"])


def test_head_norms_of_the_target_are_taken(tmp_path):
    model = make_model("qwen3")
    with torch.no_grad():
        model.model.layers[-1].self_attn.q_norm.weight.uniform_(0.5, 2.0)
    model.save_pretrained(tmp_path)
    target = read_target_weights(str(tmp_path), 2)
    tensors = initial_tensors(shape_of(target, 2), target)
    assert torch.equal(
        tensors["layers.1.self_attn.q_norm.weight"], model.model.layers[-1].self_attn.q_norm.weight
    )


def test_fc_passes_the_last_tap_through(pair):
    _, target = pair
    fc = initial_tensors(shape_of(target), target, noise=0.1)["fc.weight"]
    other, last = fc[:, :64], fc[:, 64:] - torch.eye(64)
    for part in (other, last):
        assert float(part.std()) == pytest.approx(0.1 * 128**-0.5, rel=0.1)
    exact = initial_tensors(shape_of(target), target, noise=0.0)["fc.weight"]
    assert torch.equal(exact, torch.cat((torch.zeros(64, 64), torch.eye(64)), 1))


def test_layers_beyond_the_targets_own_are_random(pair):
    _, target = pair
    shape = shape_of(target, 4)
    tensors = initial_tensors(shape, target)
    assert torch.equal(
        tensors["layers.3.mlp.up_proj.weight"], target.layers[-1]["mlp.up_proj.weight"].float()
    )
    assert float(tensors["layers.0.mlp.up_proj.weight"].std()) == pytest.approx(64**-0.5, rel=0.1)


def test_the_seed_fixes_it(pair):
    _, target = pair
    first, again, other = (initial_tensors(shape_of(target), target, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_nothing_of_the_target_is_shared_with_it(pair):
    """Training must not write into the target's mapped weights."""
    _, target = pair
    kept = {name: weight.clone() for name, weight in target.layers[-1].items()}
    shape = shape_of(target)
    tensors = initial_tensors(shape, target)
    for tensor in tensors.values():
        tensor.zero_()
    assert all(torch.equal(target.layers[-1][name], weight) for name, weight in kept.items())


def test_a_fresh_drafter_trains(pair):
    """All of it has finite outputs and gradients on the target's own features."""
    model, target = pair
    shape, samples = shape_of(target), samples_of(model)
    drafter = TrainableDrafter(shape.config(), target.embedding, target.lm_head)
    drafter.load_published(initial_tensors(shape, target, samples))
    drafter(lay_out(samples, [torch.tensor([12, 20])] * 3, 6, 3)).square().mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in drafter.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in drafter.parameters())
