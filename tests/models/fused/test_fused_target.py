"""The fused target behind the engine's seam: errors, what it gives, what it refuses to cover."""

from __future__ import annotations

import threading

import pytest
import torch

from draftproof.errors import ModelError
from draftproof.models.fused import FusedTarget, Precision, build_spec
from draftproof.models.kv import SequenceKV
from draftproof.models.rows import Segment
from support.fused import ODD_VOCAB, make_fused, make_model_of
from support.tiny import CONFIGS, random_tokens


def tokens_of(count: int, seed: int = 0) -> torch.Tensor:
    return random_tokens(count, seed, ODD_VOCAB)


def test_gives_the_rows_that_were_asked_for() -> None:
    target, _ = make_fused("llama")
    a, b = tokens_of(9), tokens_of(5, seed=1)
    rows_a, rows_b = (target.forward([Segment(target.new_sequence(), x, 0)]).logits for x in (a, b))
    segments = [Segment(target.new_sequence(), a, 8), Segment(target.new_sequence(), b, 2)]
    assert torch.equal(target.forward(segments).logits, torch.cat([rows_a[8:], rows_b[2:]]))
    none = target.forward([Segment(target.new_sequence(), a, 9)], taps=(1,))
    assert none.logits.shape == (0, ODD_VOCAB)
    assert none.features is not None
    assert none.features.shape == (9, 72)


def test_a_failed_pass_changes_no_sequence() -> None:
    target, _ = make_fused("llama")
    kv = target.new_sequence()
    first = target.forward([Segment(kv, tokens_of(6), 0)]).logits
    kv.commit_to(6)
    for wrong in (ODD_VOCAB, -1):
        with pytest.raises(IndexError):
            target.forward([Segment(kv, torch.tensor([wrong]), 0)])
    assert (kv.length, kv.written) == (6, 6)
    after = target.forward([Segment(kv, tokens_of(4, seed=3), 0)]).logits
    straight = torch.cat([tokens_of(6), tokens_of(4, seed=3)])
    whole = target.forward([Segment(target.new_sequence(), straight, 0)]).logits
    assert torch.equal(whole, torch.cat([first, after]))


def test_errors() -> None:
    target, _ = make_fused("llama")
    kv = target.new_sequence()
    with pytest.raises(ModelError, match=r"tap layers must lie in 0\.\.3") as tap:
        target.forward([Segment(kv, tokens_of(2), 0)], taps=(4,))
    assert tap.value.code == "DP257"
    with pytest.raises(ModelError, match="position 512 is beyond the context of llama: 512 tokens") as room:
        target.forward([Segment(kv, tokens_of(513), 0)])
    assert room.value.code == "DP258"
    with pytest.raises(RuntimeError, match="the table has 1"):
        target.forward([Segment(SequenceKV(target.new_pages(3), [2]), tokens_of(65), 0)])
    with pytest.raises(RuntimeError, match=r"page numbers must lie in 0\.\.2"):
        target.forward([Segment(SequenceKV(target.new_pages(3), [3]), tokens_of(5), 0)])
    other, _ = make_fused("llama", Precision.BFLOAT16)
    with pytest.raises(RuntimeError, match="pages were not made by llama"):
        target.forward([Segment(other.new_sequence(), tokens_of(5), 0)])


def test_passes_from_several_threads_do_not_mix() -> None:
    target, _ = make_fused("qwen2", Precision.INT8)
    wishes = [tokens_of(5 + 7 * seed, seed) for seed in range(6)]
    alone = [target.forward([Segment(target.new_sequence(), wish, 0)]).logits for wish in wishes]
    together: dict[int, list[torch.Tensor]] = {}

    def work(index: int) -> None:
        together[index] = [
            target.forward([Segment(target.new_sequence(), wishes[index], 0)]).logits for _ in range(5)
        ]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(wishes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(rows, alone[index]) for index, found in together.items() for rows in found)
    assert sorted(together) == list(range(len(wishes)))


def test_what_a_drafter_borrows() -> None:
    target, model = make_fused("qwen2")
    info = target.info
    assert (info.vocab_size, info.hidden_size, info.num_layers, info.max_position) == (ODD_VOCAB, 72, 4, 512)
    assert torch.equal(info.embedding, model.get_input_embeddings().weight)
    assert info.lm_head(torch.empty(0, 72)).shape == (0, ODD_VOCAB)
    hidden = torch.randn(600, 72)
    assert torch.equal(info.lm_head(hidden)[513:514], info.lm_head(hidden[513:514]))


@pytest.mark.parametrize("kind", ["gemma2", "phi3", "gpt2", "gpt-oss", "olmoe", "qwen2-moe"])
def test_other_architectures_are_left_to_transformers(kind: str) -> None:
    config = CONFIGS[kind]()
    assert build_spec(config, {}) is None


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("gemma3", {"attn_logit_softcapping": 5.0}),
        ("gemma3", {"use_bidirectional_attention": True}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        ),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}),
        ("llama", {"layer_types": ["sliding_attention"] * 4}),
    ],
)
def test_what_is_not_covered_is_left_to_transformers(kind: str, changes: dict[str, object]) -> None:
    model = make_model_of(kind)
    tensors = model.state_dict()
    assert build_spec(model.config, tensors) is not None
    for name, value in changes.items():
        setattr(model.config, name, value)
    assert build_spec(model.config, tensors) is None


def test_unknown_or_missing_weights_are_left_to_transformers() -> None:
    model = make_model_of("llama")
    tensors = model.state_dict()
    name = "model.layers.1.self_attn.k_proj.weight"
    assert build_spec(model.config, {k: v for k, v in tensors.items() if k != name}) is None
    assert build_spec(model.config, {**tensors, "model.layers.1.self_attn.sinks": torch.zeros(4)}) is None
    spec = build_spec(model.config, {**tensors, name: torch.zeros(3, 3)})
    assert spec is not None
    with pytest.raises(ModelError, match=r"k_proj\.weight should be") as error:
        FusedTarget(spec, Precision.FLOAT32, "x")
    assert error.value.code == "DP250"


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_the_text_model_of_a_larger_one(prefix: str) -> None:
    from transformers import Gemma3Config

    target, model = make_fused("gemma3")
    tensors = {
        name.replace("model.", prefix, 1): tensor
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    tensors["model.vision_tower.patch.weight"] = torch.zeros(3)
    config = Gemma3Config(text_config=model.config.to_dict())
    spec = build_spec(config, tensors)
    assert spec is not None
    whole = FusedTarget(spec, Precision.FLOAT32, "whole")
    rows = [t.forward([Segment(t.new_sequence(), tokens_of(20), 0)]).logits for t in (target, whole)]
    assert torch.equal(*rows)


@pytest.mark.parametrize("default", [torch.float64, torch.float16])
def test_the_caller_s_default_dtype_changes_nothing(default: torch.dtype) -> None:
    """Compiled code writes float32 by address: memory of another dtype would be misread, or too small."""
    model = make_model_of("llama")
    spec = build_spec(model.config, model.state_dict())
    assert spec is not None
    plain = FusedTarget(spec, Precision.INT8, "llama")
    rows = plain.forward([Segment(plain.new_sequence(), tokens_of(40), 0)], taps=(1,))
    hidden = torch.randn(7, 72, generator=torch.Generator().manual_seed(0))
    torch.set_default_dtype(default)
    try:
        target = FusedTarget(spec, Precision.INT8, "llama")
        same = target.forward([Segment(target.new_sequence(), tokens_of(40), 0)], taps=(1,))
        head = target.lm_head(hidden)
    finally:
        torch.set_default_dtype(torch.float32)
    assert same.logits.dtype == head.dtype == torch.float32
    assert torch.equal(same.logits, rows.logits)
    assert rows.features is not None
    assert same.features is not None
    assert torch.equal(same.features, rows.features)
    assert torch.equal(head, plain.lm_head(hidden))
