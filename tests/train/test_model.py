"""The trained module against the engine's reference, and what it gives to and takes from checkpoints."""

from __future__ import annotations

import json

import pytest
import torch
from drafter_cases import (
    GOLDEN,
    HIDDEN,
    VOCAB,
    checkpoint,
    reference,
    reference_hidden,
    sample,
    tables,
    trainable,
)
from safetensors.torch import load_file, save_file

from draftproof.errors import DrafterError
from draftproof.models.drafters.config import read_config
from draftproof.train.blocks import BlockBatch, lay_out, make_batch
from draftproof.train.features import Sample
from draftproof.train.model import TrainableDrafter

KINDS = {
    "full": {},
    "one-head": {"num_heads": 3, "num_kv_heads": 3, "head_dim": 8},
    "windowed": {"dflash_config": {"use_swa": True, "swa_window_size": 5}},
    "causal": {"top": {"is_causal": True}},
    "sliding": {
        "top": {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 4,
            "use_sliding_window": True,
        }
    },
    "biased": {"top": {"attention_bias": True}},
    "sinks": {"dflash_config": {"attention_sink_bias": True}},
    "scaled": {
        "dflash_config": {
            "attention_value_scale": 0.7,
            "input_embedding_scale": 3.0,
            "output_multiplier": 1.5,
            "final_logit_softcapping": 4.0,
        }
    },
    "gelu": {"top": {"hidden_act": "gelu_pytorch_tanh"}},
    "relu": {"top": {"hidden_act": "relu"}},
    "yarn": {
        "top": {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        }
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_anchor_agrees_with_the_engines_reference(tmp_path, kind):
    embedding, head = tables()
    folder = checkpoint(tmp_path / "d", block_size=5, **KINDS[kind])
    model, engine = trainable(folder, embedding, head), reference(folder, embedding, head)
    samples = [sample(23, 4, 1), sample(9, 9 - 3, 2), sample(16, 0, 3)]
    batch = make_batch(samples, 100, 5, model.config.mask_token_id)
    hidden = model(batch)
    logits = model.logits(hidden)
    at = 0
    for part, count in zip(samples, batch.anchor_counts, strict=True):
        assert count == len(part.token_ids) - 1 - max(part.response_start - 1, 0)
        for anchor in batch.anchor_positions[at : at + count].tolist():
            want = reference_hidden(engine, part.features, anchor, int(part.token_ids[anchor]), 5)
            torch.testing.assert_close(hidden[at], want, atol=1e-4, rtol=0)
            torch.testing.assert_close(logits[at], engine.logits(want), atol=1e-4, rtol=0)
            at += 1
    assert at == batch.num_anchors


@pytest.mark.parametrize("name", ["full", "sliding", "softcap"])
def test_golden_steps(name):
    expected = load_file(GOLDEN / name / "expected.safetensors")
    model = trainable(GOLDEN / name, expected["embed_tokens.weight"], expected["lm_head.weight"], 12)
    features = torch.zeros(0, expected["step0.target_hidden"].shape[1])
    for step in range(4):
        features = torch.cat((features, expected[f"step{step}.target_hidden"]))
        ids = expected[f"step{step}.block_ids"].long()
        hidden = model(_one_block(features, ids))
        torch.testing.assert_close(hidden[0], expected[f"step{step}.hidden"][1:], atol=1e-4, rtol=0)
        torch.testing.assert_close(model.logits(hidden[0]), expected[f"step{step}.logits"], atol=1e-4, rtol=0)


def _one_block(features: torch.Tensor, ids: torch.Tensor) -> BlockBatch:
    rows, size = features.shape[0], ids.shape[0]
    return BlockBatch(
        features=features,
        positions=torch.arange(rows),
        row_counts=(rows,),
        anchor_positions=torch.tensor([rows]),
        anchor_counts=(1,),
        block_ids=ids[None],
        labels=torch.zeros(1, size - 1, dtype=torch.int64),
        valid=torch.ones(1, size - 1, dtype=torch.bool),
    )


def test_a_block_depends_on_nothing_but_its_context_and_itself(tmp_path):
    """Features from the anchor on, other blocks and other sequences may change without a trace."""
    embedding, head = tables()
    model = trainable(checkpoint(tmp_path / "d"), embedding, head)
    one, other = sample(20, 3, 1), sample(12, 3, 2)
    anchor = torch.tensor([9])
    alone = model(lay_out([one], [anchor], 8, 60))
    altered = Sample(one.token_ids, 3, torch.cat((one.features[:9], torch.randn(11, one.features.shape[1]))))
    together = model(lay_out([other, altered], [torch.tensor([4, 7]), torch.tensor([6, 9, 15])], 8, 60))
    torch.testing.assert_close(together[3], alone[0], atol=1e-5, rtol=0)
    assert not torch.allclose(together[2], together[3], atol=1e-2)


def test_only_the_drafters_own_weights_are_trained(tmp_path):
    embedding, head = tables()
    model = trainable(checkpoint(tmp_path / "d"), embedding, head)
    names = set(load_file(tmp_path / "d" / "model.safetensors"))
    assert set(model.state_dict()) == names == set(model.published_tensors())
    before = embedding.clone(), head.clone()
    batch = make_batch([sample(20, 4)], 6, 8, model.config.mask_token_id)
    model.logits(model(batch)).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert embedding.grad is None
    assert torch.equal(embedding, before[0])
    assert torch.equal(head, before[1])


def test_gradients_are_those_of_the_formula(tmp_path):
    """By finite differences in float64."""
    embedding, head = tables()
    options = {"dflash_config": {"use_swa": True, "swa_window_size": 6}, "num_layers": 1}
    model = trainable(checkpoint(tmp_path / "d", **options), embedding.double(), head.double()).double()
    part = sample(14, 4)
    batch = make_batch([Sample(part.token_ids, 4, part.features.double())], 3, 4, 60)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(3, 3, HIDDEN, generator=generator, dtype=torch.float64)
    (model(batch) * direction).sum().backward()
    for name, parameter in model.named_parameters():
        step = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        slopes = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(step, alpha=sign * 1e-5)
                slopes.append(float((model(batch) * direction).sum()))
                parameter.sub_(step, alpha=sign * 1e-5)
        want = (slopes[0] - slopes[1]) / 2e-5
        got = float((parameter.grad * step).sum())
        assert got == pytest.approx(want, rel=2e-4, abs=2e-4), name


def test_under_autocast_it_stays_close(tmp_path):
    embedding, head = tables()
    model = trainable(checkpoint(tmp_path / "d"), embedding, head)
    batch = make_batch([sample(30, 4), sample(17, 5, 3)], 8, 8, model.config.mask_token_id)
    exact = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        near = model(batch)
    assert near.dtype == torch.bfloat16
    assert (near.float() - exact).norm() < 0.02 * exact.norm()


def test_what_is_written_is_what_was_loaded(tmp_path):
    embedding, head = tables()
    model = trainable(checkpoint(tmp_path / "d", dtype=torch.bfloat16), embedding, head)
    stored = load_file(tmp_path / "d" / "model.safetensors")
    for name, tensor in model.published_tensors().items():
        assert torch.equal(tensor, stored[name].float()), name


def test_dflash2_is_refused(tmp_path):
    config = read_config(checkpoint(tmp_path / "d", dflash2=True), 10)
    with pytest.raises(DrafterError) as error:
        TrainableDrafter(config, *tables())
    assert error.value.code == "DP515"


def test_a_checkpoint_with_its_own_embedding_is_refused(tmp_path):
    embedding, head = tables()
    folder = checkpoint(tmp_path / "d")
    tensors = load_file(folder / "model.safetensors") | {"embed_tokens.weight": embedding}
    model = TrainableDrafter(read_config(folder, 10), embedding, head)
    with pytest.raises(DrafterError) as error:
        model.load_published(tensors)
    assert error.value.code == "DP515"


@pytest.mark.parametrize(
    ("change", "code"), [("drop", "DP305"), ("extra", "DP306"), ("shape", "DP307"), ("nan", "DP308")]
)
def test_a_damaged_checkpoint_is_refused(tmp_path, change, code):
    embedding, head = tables()
    folder = checkpoint(tmp_path / "d")
    tensors = load_file(folder / "model.safetensors")
    if change == "drop":
        del tensors["fc.weight"]
    elif change == "extra":
        tensors["spare.weight"] = torch.zeros(2)
    elif change == "shape":
        tensors["norm.weight"] = torch.ones(HIDDEN + 1)
    else:
        tensors["norm.weight"][0] = torch.nan
    save_file(tensors, folder / "other.safetensors")
    model = TrainableDrafter(read_config(folder, 10), embedding, head)
    with pytest.raises(DrafterError) as error:
        model.load_published(load_file(folder / "other.safetensors"))
    assert error.value.code == code


@pytest.mark.parametrize(
    ("embedding", "head", "code"),
    [
        (torch.zeros(VOCAB + 1, HIDDEN), torch.zeros(VOCAB, HIDDEN), "DP312"),
        (torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN + 2), "DP311"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path, embedding, head, code):
    config = read_config(checkpoint(tmp_path / "d"), 10)
    with pytest.raises(DrafterError) as error:
        TrainableDrafter(config, embedding, head)
    assert error.value.code == code


def test_configs_of_golden_checkpoints_say_what_the_test_believes():
    """So that the windowed and capped ways above are really taken."""
    sliding = json.loads((GOLDEN / "sliding" / "config.json").read_text())
    assert "sliding_attention" in sliding["layer_types"]
    assert read_config(GOLDEN / "softcap", 12).softcap is not None
