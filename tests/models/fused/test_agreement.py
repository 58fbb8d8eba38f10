"""The fused executor computes what Transformers computes, for every covered architecture and in every precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftproof.models.fused import FusedTarget, Precision
from draftproof.models.fused.packed import head_precision
from draftproof.models.kernels.packing import pack
from draftproof.models.rows import Segment
from support.fused import KINDS, ODD_VOCAB, make_fused, make_model_of
from support.tiny import random_tokens

LENGTH = 90
TAPS = (0, 2, 3, 0)


def run(target: FusedTarget, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    output = target.forward([Segment(target.new_sequence(), tokens, 0)], TAPS)
    assert output.features is not None
    return output.logits, output.features.float()


def expected(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        output = model(input_ids=tokens[None], use_cache=False, output_hidden_states=True)
    return output.logits[0], torch.cat([output.hidden_states[layer + 1][0] for layer in TAPS], dim=-1)


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, as a part of the largest number."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def with_packed_weights(model: Any, precision: Precision) -> Any:
    """The model with every product's weight as the kernels multiply it, and the embedding in bfloat16."""
    with torch.no_grad():
        head = pack(model.lm_head.weight, head_precision(precision)).unpack()
        embedding = model.get_input_embeddings()
        embedding.weight = torch.nn.Parameter(embedding.weight.bfloat16().float())
        if hasattr(embedding, "embed_scale"):
            embedding.embed_scale = embedding.embed_scale.bfloat16().float()
        model.lm_head.weight = torch.nn.Parameter(head)
        for name, module in model.model.layers.named_modules():
            if name.endswith("_proj"):
                module.weight = torch.nn.Parameter(pack(module.weight, precision).unpack())
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_float32_agrees_with_transformers(kind: str) -> None:
    tokens = random_tokens(LENGTH, vocab=ODD_VOCAB)
    target, model = make_fused(kind)
    for ours, theirs in zip(run(target, tokens), expected(model, tokens), strict=True):
        assert distance(ours, theirs) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("precision", "allowed"),
    [(Precision.BFLOAT16, 0.025), (Precision.INT8, 0.06), (Precision.INT4, 0.06)],
    ids=lambda x: getattr(x, "value", None),
)
def test_narrow_precisions_agree_within_their_rounding(
    kind: str, precision: Precision, allowed: float
) -> None:
    """What is left when the weights are the same is the rounding of activations, keys and values."""
    tokens = random_tokens(LENGTH, vocab=ODD_VOCAB)
    target, model = make_fused(kind, precision)
    model = with_packed_weights(model, precision)
    for ours, theirs in zip(run(target, tokens), expected(model, tokens), strict=True):
        assert distance(ours, theirs) < allowed


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads(tied: bool) -> None:
    from draftproof.models.fused import build_spec

    model = make_model_of("llama", tie_word_embeddings=tied)
    tensors = dict(model.state_dict())
    if tied:
        del tensors["lm_head.weight"]  # a checkpoint need not hold it twice
    spec = build_spec(model.config, tensors)
    assert spec is not None
    tokens = random_tokens(LENGTH, vocab=ODD_VOCAB)
    ours, _ = run(FusedTarget(spec, Precision.FLOAT32, "x"), tokens)
    assert distance(ours, expected(model, tokens)[0]) < 1e-5


def test_final_softcap() -> None:
    tokens = random_tokens(LENGTH, vocab=ODD_VOCAB)
    target, model = make_fused("gemma3", final_logit_softcapping=2.0)
    ours, _ = run(target, tokens)
    theirs, _ = expected(model, tokens)
    assert float(theirs.abs().max()) < 2.0
    assert distance(ours, theirs) < 1e-5


def test_the_head_alone_has_no_softcap() -> None:
    target, model = make_fused("gemma3", final_logit_softcapping=2.0)
    hidden = torch.randn(7, 72)
    torch.testing.assert_close(target.info.lm_head(hidden), model.lm_head(hidden), atol=1e-4, rtol=1e-4)
