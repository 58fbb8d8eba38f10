"""Exports read back: the same drafter, to the bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from export_support import DEPTH, GOLDEN, VOCAB, as_llama_cpp_reads, as_vllm_reads, drafter
from gguf import GGMLQuantizationType, GGUFReader
from safetensors.torch import load_file

from draftproof.errors import DrafterError, DraftproofError, RequestError
from draftproof.export import ExportOptions, export_drafter
from draftproof.models.drafters.config import DrafterConfig, read_config
from draftproof.models.drafters.weights import read_tensors

EVERYTHING = {
    "attention_sink_bias": True,
    "attention_value_scale": 0.5,
    "input_embedding_scale": 8.0,
    "output_multiplier": 0.25,
    "final_logit_softcapping": 30.0,
}


def told(folder: Path) -> DrafterConfig:
    """What a checkpoint's config says, apart from where it lies and what no export holds: its target's depth."""
    return replace(read_config(folder), source="", num_target_layers=None)


def same_tensors(one: Path, other: Path) -> bool:
    a, b = read_tensors(one), read_tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[name].float(), b[name].float()) for name in a)


@pytest.mark.parametrize("name", ["full", "dflash2"])
def test_a_speculators_folder_holds_the_same_drafter(tmp_path: Path, target_folder: str, name: str) -> None:
    summary = export_drafter(
        GOLDEN / name, "speculators", tmp_path / "out", ExportOptions(target=target_folder)
    )
    assert (summary.taps, summary.written_taps) == ((1, 4, 8), (2, 5, 9))
    assert (summary.draft_tokens, summary.verifier) == (7, target_folder)
    assert {file.stat().st_mode & 0o044 for file in (tmp_path / "out").iterdir()} == {0o044}
    read = as_vllm_reads(tmp_path / "out", tmp_path / "read")
    assert told(read) == told(GOLDEN / name)
    assert same_tensors(read, GOLDEN / name)


@pytest.mark.parametrize("name", ["full", "dflash2", "softcap"])
def test_a_gguf_file_holds_the_same_drafter(tmp_path: Path, target_folder: str, name: str) -> None:
    out = tmp_path / "out.gguf"
    summary = export_drafter(GOLDEN / name, "gguf", out, ExportOptions(target=target_folder))
    assert (summary.written_taps, summary.size, summary.dtype) == ((2, 5, 9), out.stat().st_size, "f32")
    read = as_llama_cpp_reads(out, tmp_path / "read")
    ours, theirs = told(GOLDEN / name), told(read)
    assert theirs.rms_norm_eps == pytest.approx(ours.rms_norm_eps)  # float32 in the file
    assert theirs.output_multiplier == pytest.approx(ours.output_multiplier)
    close = replace(ours, rms_norm_eps=theirs.rms_norm_eps, output_multiplier=theirs.output_multiplier)
    assert theirs == close
    assert same_tensors(read, GOLDEN / name)


@pytest.mark.parametrize("second", [False, True])
def test_every_factor_goes_into_a_gguf_file(tmp_path: Path, target_folder: str, second: bool) -> None:
    folder = drafter(
        tmp_path / "drafter", dflash2=second, top={"hidden_act": "gelu_pytorch_tanh"}, own=EVERYTHING
    )
    export_drafter(folder, "gguf", tmp_path / "out.gguf", ExportOptions(target=target_folder))
    read = as_llama_cpp_reads(tmp_path / "out.gguf", tmp_path / "read")
    assert replace(told(read), rms_norm_eps=1e-6) == told(folder)
    assert same_tensors(read, folder)


def test_the_codebooks_are_bare_parameters_in_a_speculators_folder(tmp_path: Path) -> None:
    """As the library and vLLM name them; our own reader would take either."""
    export_drafter(GOLDEN / "dflash2", "speculators", tmp_path / "out")
    names = {
        name for name in load_file(tmp_path / "out" / "model.safetensors") if "candidate_selector" in name
    }
    assert names == {
        "candidate_selector.predecessor_codebook",
        "candidate_selector.successor_codebook",
        "candidate_selector.hidden_projection.weight",
    }


def test_biases_go_into_a_speculators_folder(tmp_path: Path) -> None:
    folder = drafter(tmp_path / "drafter", top={"attention_bias": True})
    summary = export_drafter(folder, "speculators", tmp_path / "out")
    assert summary.verifier is None
    read = as_vllm_reads(tmp_path / "out", tmp_path / "read")
    assert told(read) == told(folder)
    assert same_tensors(read, folder)


def test_taps_are_put_in_order_and_the_columns_of_fc_with_them(tmp_path: Path, target_folder: str) -> None:
    """vLLM hands tapped states over in the order of the layers, whatever the order of the list."""
    folder = drafter(tmp_path / "drafter", target_layer_ids=(8, 1, 4))
    export_drafter(folder, "speculators", tmp_path / "out", ExportOptions(target=target_folder))
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["aux_hidden_state_layer_ids"] == [2, 5, 9]
    states = torch.randn(DEPTH, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = read_tensors(folder)["fc.weight"].double() @ torch.cat([states[8], states[1], states[4]])
    after = load_file(tmp_path / "out" / "model.safetensors")["fc.weight"].double()
    assert torch.allclose(after @ torch.cat([states[1], states[4], states[8]]), before)

    export_drafter(folder, "gguf", tmp_path / "out.gguf", ExportOptions(target=target_folder))
    read = as_llama_cpp_reads(tmp_path / "out.gguf", tmp_path / "read")
    assert told(read).target_layer_ids == (8, 1, 4)  # llama.cpp goes by the list
    assert torch.equal(read_tensors(read)["fc.weight"], read_tensors(folder)["fc.weight"])


def test_the_flag_for_later_slots_is_always_written(tmp_path: Path) -> None:
    """Left out, the library takes it for False and vLLM for True."""
    windowed = {"layer_types": ["sliding_attention"] * 3, "use_sliding_window": True, "sliding_window": 9}
    for name, top, wanted in (("full", None, True), ("causal", windowed, False)):
        folder = drafter(tmp_path / name, top=top)
        export_drafter(folder, "speculators", tmp_path / f"{name}-out")
        config = json.loads((tmp_path / f"{name}-out" / "config.json").read_text(encoding="utf-8"))
        assert config["sliding_window_non_causal"] is wanted


def test_the_speculators_library_reads_the_config(tmp_path: Path, target_folder: str) -> None:
    """Runs where the library is installed; it is no dependency."""
    speculators = pytest.importorskip("speculators")
    for name in ("full", "dflash2"):
        export_drafter(GOLDEN / name, "speculators", tmp_path / name, ExportOptions(target=target_folder))
        config = speculators.SpeculatorModelConfig.from_pretrained(tmp_path / name)
        assert config.aux_hidden_state_layer_ids == [2, 5, 9]
        assert (config.block_size, config.mask_token_id, config.sliding_window_non_causal) == (8, 210, True)
        assert config.transformer_layer_config.rope_parameters["rope_theta"] == 1000000.0


def test_weights_keep_their_type_or_take_another(tmp_path: Path, target_folder: str) -> None:
    folder = drafter(tmp_path / "drafter", dtype=torch.bfloat16)
    weights = read_tensors(folder)
    loss = {"auto": 0.0, "bf16": 0.0, "f32": 0.0, "f16": 2**-11, "q8_0": 0.6 / 127}
    for dtype, bound in loss.items():
        out = tmp_path / f"{dtype}.gguf"
        summary = export_drafter(folder, "gguf", out, ExportOptions(target=target_folder, dtype=dtype))
        assert summary.dtype == ("bf16" if dtype == "auto" else dtype)
        read = read_tensors(as_llama_cpp_reads(out, tmp_path / f"{dtype}-read"))
        for name, tensor in weights.items():
            exact = tensor.float()
            allowed = bound if exact.ndim == 2 else 0.0
            assert (read[name] - exact).abs().max() <= allowed * exact.abs().max() + 1e-9, (dtype, name)
    kinds = {tensor.name: tensor.tensor_type for tensor in GGUFReader(tmp_path / "q8_0.gguf").tensors}
    assert kinds["fc.weight"] == GGMLQuantizationType.Q8_0
    assert kinds["blk.0.attn_q_norm.weight"] == kinds["output_norm.weight"] == GGMLQuantizationType.F32


def test_types_that_do_not_fit_are_refused(tmp_path: Path, target_folder: str) -> None:
    narrow = drafter(tmp_path / "narrow", intermediate_size=72)
    huge = drafter(tmp_path / "huge")
    weights = load_file(huge / "model.safetensors")
    weights["fc.weight"][0, 0] = 1e6
    from safetensors.torch import save_file

    save_file(weights, huge / "model.safetensors")
    for folder, to, dtype in (
        (narrow, "gguf", "q8_0"),
        (huge, "gguf", "f16"),
        (narrow, "gguf", "q4_k_m"),
        (narrow, "speculators", "bf16"),
    ):
        with pytest.raises(RequestError) as caught:
            export_drafter(folder, to, tmp_path / "out", ExportOptions(target=target_folder, dtype=dtype))
        assert caught.value.code == "DP535"
        assert not (tmp_path / "out").exists()


def test_a_vocabulary_made_from_a_folder(tmp_path: Path, target_folder: str) -> None:
    export_drafter(GOLDEN / "full", "gguf", tmp_path / "out.gguf", ExportOptions(target=target_folder))
    fields = GGUFReader(tmp_path / "out.gguf").fields
    tokens, kinds = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type"))
    assert len(tokens) == len(kinds) == VOCAB
    assert (tokens[:2], kinds[:2]) == (["<s>", "</s>"], [3, 3])
    assert (tokens[200:], kinds[200:]) == (
        ["ab", "<tool>", *(f"[PAD{index}]" for index in range(202, VOCAB))],
        [1, 4, *[5] * (VOCAB - 202)],
    )
    assert fields["tokenizer.ggml.merges"].contents() == ["a b"]
    ids = {key: fields[f"tokenizer.ggml.{key}_token_id"].contents() for key in ("bos", "eos", "mask")}
    assert ids == {"bos": 0, "eos": 1, "mask": 210}
    assert fields["tokenizer.ggml.model"].contents() == "gpt2"


def test_a_vocabulary_copied_from_a_gguf_file(tmp_path: Path, target_gguf: str) -> None:
    export_drafter(GOLDEN / "full", "gguf", tmp_path / "out.gguf", ExportOptions(target=target_gguf))
    theirs, ours = GGUFReader(target_gguf).fields, GGUFReader(tmp_path / "out.gguf").fields
    copied = [key for key in theirs if key.startswith("tokenizer.")]
    assert len(copied) == 7
    for key in copied:
        if key != "tokenizer.ggml.mask_token_id":
            assert (ours[key].types, ours[key].contents()) == (theirs[key].types, theirs[key].contents()), key
    assert ours["tokenizer.ggml.mask_token_id"].contents() == 210, "the drafter's, not the target's"


def test_the_target_is_checked_and_needed_where_it_is(
    tmp_path: Path, target_folder: str, target_gguf: str
) -> None:
    def code(folder: Path, to: str, **options: str) -> str:
        with pytest.raises(DraftproofError) as caught:
            export_drafter(folder, to, tmp_path / "out", ExportOptions(**options))  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()
        return caught.value.code

    silent = drafter(tmp_path / "silent", top={"num_target_layers": None})
    other = drafter(tmp_path / "other", num_target_layers=DEPTH + 1)
    wide = drafter(tmp_path / "wide", vocab_size=VOCAB + 1)
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(Path(target_gguf).read_bytes()[:200])
    assert code(GOLDEN / "full", "gguf") == "DP532"
    assert code(GOLDEN / "full", "gguf", target=target_folder, verifier="me/it") == "DP532"
    assert code(GOLDEN / "full", "gguf", target=str(torn)) == "DP532"
    assert code(GOLDEN / "full", "gguf", target=str(tmp_path / "absent.gguf")) == "DP532"
    assert code(silent, "speculators") == "DP532"
    assert code(other, "speculators", target=target_folder) == "DP310"
    assert code(wide, "gguf", target=target_gguf) == "DP312"
    assert code(GOLDEN / "full", "vllm") == "DP530"
    assert code(tmp_path / "nowhere", "speculators") == "DP301"
    export_drafter(
        silent, "speculators", tmp_path / "out", ExportOptions(target=target_gguf, verifier="me/it")
    )
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["speculators_config"]["verifier"]["name_or_path"] == "me/it"


def test_a_tokenizer_that_cannot_be_written_is_refused(tmp_path: Path, target_folder: str) -> None:
    import shutil

    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "unigram"
    shutil.copytree(target_folder, folder)
    inner = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>").save_pretrained(folder)
    with pytest.raises(RequestError) as caught:
        export_drafter(GOLDEN / "full", "gguf", tmp_path / "out.gguf", ExportOptions(target=str(folder)))
    assert caught.value.code == "DP533"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unigram"]


def test_an_export_appears_whole_or_not_at_all(
    tmp_path: Path, target_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ExportOptions(target=target_folder)
    for to, module in (
        ("speculators", "draftproof.export.speculators.save_file"),
        ("gguf", "gguf.GGUFWriter.write_tensors_to_file"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, _full_disk)
            with pytest.raises(RequestError) as caught:
                export_drafter(GOLDEN / "full", to, tmp_path / "out", options)
        assert caught.value.code == "DP534"
        assert "No space left" in caught.value.message
        assert list(tmp_path.iterdir()) == []


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_what_is_there_already_stays_unless_told(tmp_path: Path, target_folder: str) -> None:
    options = ExportOptions(target=target_folder)
    again = replace(options, overwrite=True)
    folder, file = tmp_path / "folder", tmp_path / "file.gguf"
    folder.mkdir()
    export_drafter(GOLDEN / "full", "speculators", folder, options)  # an empty folder is no obstacle
    (folder / "mine.txt").write_text("kept", encoding="utf-8")
    export_drafter(GOLDEN / "full", "gguf", file, options)
    source = drafter(tmp_path / "drafter")
    for to, out, chosen in (
        ("speculators", folder, options),
        ("gguf", file, options),
        ("gguf", folder, again),
        ("speculators", file, again),
        ("speculators", source, again),
        ("speculators", tmp_path / "no" / "such", again),
    ):
        with pytest.raises(RequestError) as caught:
            export_drafter(source, to, out, chosen)
        assert caught.value.code == "DP534"
    export_drafter(source, "speculators", folder, again)
    export_drafter(source, "gguf", file, again)
    assert same_tensors(as_vllm_reads(folder, tmp_path / "read"), source)
    assert same_tensors(as_llama_cpp_reads(file, tmp_path / "read-file"), source)
    assert (folder / "mine.txt").read_text(encoding="utf-8") == "kept"
    assert (source / "config.json").exists()


def test_the_default_drafter_is_found_by_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError) as caught:
        export_drafter("default", "speculators", tmp_path / "out")
    assert caught.value.code == "DP532"
    with pytest.raises(DrafterError) as missing:
        export_drafter("default", "speculators", tmp_path / "out", ExportOptions(target="nobody"))
    assert missing.value.code == "DP548"
