"""What a format's reader computes is what the checkpoint asks for, or there is no export."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from export_support import (
    DEPTH,
    GOLDEN,
    HIDDEN,
    VOCAB,
    add_tensors,
    as_llama_cpp_reads,
    as_vllm_reads,
    drafter,
)

from draftproof.errors import DraftproofError
from draftproof.export import ExportOptions, export_drafter
from draftproof.models.drafters.config import read_config
from draftproof.models.drafters.rope import inverse_frequencies

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOWED = {"use_sliding_window": True, "sliding_window": 9}


def refused(folder: Path, to: str, out: Path, target: str) -> str | None:
    """The reason for refusing, or None where the export is there."""
    try:
        export_drafter(folder, to, out, ExportOptions(target=target))
    except DraftproofError as error:
        return error.message if error.code == "DP531" and not out.exists() else f"not this: {error!r}, {out}"
    return None


def attention_cases() -> list[dict[str, Any]]:
    """Every mixture of windowed and full layers, with every way of saying whether slots see later ones."""
    cases = []
    for types, causal, top in itertools.product(
        ([FULL] * 3, [SLIDING] * 3, [SLIDING, FULL, SLIDING]), (None, True, False), (False, True)
    ):
        flag: dict[str, Any] = {} if causal is None else {"is_causal": causal} if top else {"causal": causal}
        own = {} if top else flag
        cases.append({"top": {"layer_types": types, **WINDOWED, **(flag if top else {})}, "own": own})
    cases.append({"top": {}, "own": {"use_swa": True, "swa_window_size": 9}})
    cases.append({"top": {}, "own": {"use_swa": True, "swa_window_size": 5}})
    return cases


@pytest.mark.parametrize("to", ["speculators", "gguf"])
@pytest.mark.parametrize("case", attention_cases())
def test_every_layer_attends_as_before_or_is_refused(
    tmp_path: Path, target_folder: str, case: dict[str, Any], to: str
) -> None:
    folder = drafter(tmp_path / "drafter", **case)
    wanted = read_config(folder).layers
    out = tmp_path / "out"
    reason = refused(folder, to, out, target_folder)
    alike = len({layer.causal for layer in wanted}) == 1
    if reason is None:
        read = (as_vllm_reads if to == "speculators" else as_llama_cpp_reads)(out, tmp_path / "read")
        config = read_config(read)
        assert config.layers == wanted
        if to == "gguf":  # windows there look back only
            assert all(layer.causal or (layer.window or 99) >= config.block_size for layer in config.layers)
    elif not alike:
        assert "some of its layers are causal" in reason
    elif to == "speculators":
        assert "causal layers without a window" in reason
        assert wanted[0].causal
        assert any(layer.window is None for layer in wanted), "only causal full attention is beyond it"
    else:
        assert "its window of 5" in reason
        assert any(layer.window == 5 for layer in wanted), "only windows shorter than a block are beyond it"


@pytest.mark.parametrize(
    ("to", "change", "word"),
    [
        ("speculators", {"own": {"attention_sink_bias": True}}, "attention_sink_bias"),
        ("speculators", {"own": {"attention_value_scale": 0.5}}, "attention_value_scale"),
        ("speculators", {"own": {"input_embedding_scale": 8.0}}, "input_embedding_scale"),
        ("speculators", {"own": {"output_multiplier": 0.5}}, "output_multiplier"),
        ("speculators", {"own": {"final_logit_softcapping": 30.0}}, "final_logit_softcapping"),
        ("speculators", {"dflash2": True, "own": {"conv_kernel_size": 9}}, "convolution"),
        ("gguf", {"top": {"attention_bias": True}}, "attention_bias"),
        ("gguf", {"top": {"hidden_act": "gelu"}}, "activation"),
        ("gguf", {"top": {"hidden_act": "relu"}}, "activation"),
        ("gguf", {"own": {"output_multiplier": -1.0}}, "order of the logits"),
        ("gguf", {"dflash2": True, "own": {"selector_top_k": 8}}, "selector_top_k"),
    ],
)
def test_what_one_format_lacks_is_refused_there_and_carried_by_the_other(
    tmp_path: Path, target_folder: str, to: str, change: dict[str, Any], word: str
) -> None:
    folder = drafter(tmp_path / "drafter", **change)
    message = refused(folder, to, tmp_path / "out", target_folder)
    assert message is not None
    assert word in message
    other = "gguf" if to == "speculators" else "speculators"
    if "output_multiplier" not in change.get("own", {}) or to == "speculators":
        assert refused(folder, other, tmp_path / "other", target_folder) is None


@pytest.mark.parametrize("to", ["speculators", "gguf"])
def test_a_tap_on_the_last_layer_is_refused(tmp_path: Path, target_folder: str, to: str) -> None:
    folder = drafter(tmp_path / "drafter", target_layer_ids=(1, 4, DEPTH - 1))
    message = refused(folder, to, tmp_path / "out", target_folder)
    assert message is not None
    assert "final norm" in message
    fine = drafter(tmp_path / "fine", target_layer_ids=(1, 4, DEPTH - 2))
    assert refused(fine, to, tmp_path / "fine-out", target_folder) is None


@pytest.mark.parametrize("to", ["speculators", "gguf"])
def test_a_layer_tapped_twice_is_refused(tmp_path: Path, target_folder: str, to: str) -> None:
    folder = drafter(tmp_path / "drafter", target_layer_ids=(1, 4, 4))
    message = refused(folder, to, tmp_path / "out", target_folder)
    assert message is not None
    assert "twice" in message


def test_own_embedding_and_head(tmp_path: Path, target_folder: str) -> None:
    """GGUF holds both, but takes a lone embedding for the head as well; `speculators` takes the target's."""
    folder = drafter(tmp_path / "drafter")
    add_tensors(folder, embed_tokens__weight=torch.randn(VOCAB, HIDDEN))
    for to in ("gguf", "speculators"):
        message = refused(folder, to, tmp_path / to, target_folder)
        assert message is not None
        assert "brings its own" in message
    add_tensors(folder, lm_head__weight=torch.randn(VOCAB, HIDDEN))
    assert refused(folder, "gguf", tmp_path / "both", target_folder) is None
    assert refused(folder, "speculators", tmp_path / "again", target_folder) is not None


def test_the_message_names_every_reason(tmp_path: Path, target_folder: str) -> None:
    message = refused(GOLDEN / "softcap", "speculators", tmp_path / "out", target_folder)
    assert message is not None
    assert "output_multiplier" in message
    assert "final_logit_softcapping" in message


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_scaled_rope_is_carried_by_both(tmp_path: Path, target_folder: str, rope: dict[str, Any]) -> None:
    from gguf import GGUFReader

    folder = drafter(tmp_path / "drafter", top={"rope_scaling": rope})
    settings = read_config(folder).rope
    export_drafter(folder, "speculators", tmp_path / "spec", ExportOptions(target=target_folder))
    assert read_config(as_vllm_reads(tmp_path / "spec", tmp_path / "read")).rope == settings

    export_drafter(folder, "gguf", tmp_path / "drafter.gguf", ExportOptions(target=target_folder))
    reader = GGUFReader(tmp_path / "drafter.gguf")
    factors = next(tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight")
    base = reader.fields["dflash.rope.freq_base"].contents()
    half = settings.head_dim // 2
    theirs = base ** (-torch.arange(half, dtype=torch.float64) / half) / torch.tensor(factors.data).double()
    ours, scale = inverse_frequencies(settings)
    assert torch.allclose(theirs, ours.double(), rtol=1e-6)
    field = reader.fields.get("dflash.rope.scaling.attn_factor")
    assert (1.0 if field is None else field.contents()) == pytest.approx(scale)
    assert "dflash.rope.scaling.type" not in reader.fields, "or it would be scaled twice"
