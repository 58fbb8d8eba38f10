"""Models that cannot be served losslessly are refused at load time, by name and with a remedy."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DiffLlamaConfig,
    DogeConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from draftproof.errors import ModelError
from draftproof.models.attention import NAME, register
from draftproof.models.rows import Segment
from draftproof.models.target import Target, TargetOptions
from support.tiny import CONFIGS, make_model, make_target, random_tokens


def saved(folder: Path, kind: str = "llama", **changes: Any) -> Path:
    make_model(kind).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def refuse(path: Path, code: str, match: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        Target.load(path, "mine", TargetOptions(device="cpu", **options))
    assert caught.value.code == code


def test_recurrent_state(tmp_path: Path) -> None:
    MambaForCausalLM(
        MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4)
    ).save_pretrained(tmp_path)
    with pytest.raises(ModelError) as caught:
        Target.load(tmp_path, "mine", TargetOptions(device="cpu"))
    assert caught.value.code in {"DP250", "DP253", "DP254"}
    assert "mine" in str(caught.value)


def test_hybrid_layers(tmp_path: Path) -> None:
    register()
    model = make_model("qwen3")
    model.config._attn_implementation = NAME
    model.config.layer_types = ["linear_attention", "full_attention"] * 2
    with pytest.raises(ModelError, match="linear_attention") as caught:
        Target(model, "mine")
    assert caught.value.code == "DP254"


def test_encoder_decoder(tmp_path: Path) -> None:
    T5ForConditionalGeneration(
        T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    ).save_pretrained(tmp_path)
    refuse(tmp_path, "DP250", "mine")


def test_rope_that_depends_on_the_longest_row(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
    refuse(saved(tmp_path, rope_parameters=rope), "DP255", "dynamic")


def test_quantised(tmp_path: Path) -> None:
    refuse(saved(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4}), "DP260", "gptq")


def test_missing_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refuse(folder, "DP250", r"missing model\.layers\.2\.mlp\.up_proj\.weight")


def test_weights_of_another_shape(tmp_path: Path) -> None:
    refuse(saved(tmp_path, intermediate_size=128), "DP250", "mine")


def test_truncated_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refuse(folder, "DP250", "mine")


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"device": "nonsense"}])
def test_dtype_and_device(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ModelError) as caught:
        Target.load(saved(tmp_path), "mine", TargetOptions(**{"device": "cpu", **options}))
    assert caught.value.code == "DP259"


class LastTokenOnly(LlamaForCausalLM):
    """Gives the last logit row whatever it is asked for."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, use_cache: bool = False) -> Any:
        hidden = self.model(
            input_ids=input_ids, position_ids=position_ids, use_cache=use_cache
        ).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden[:, -1:]))


class AllRows(LastTokenOnly):
    """Cannot be told which rows to give, and gives them all."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, use_cache: bool = False) -> Any:
        hidden = self.model(
            input_ids=input_ids, position_ids=position_ids, use_cache=use_cache
        ).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden))


def built(kind: type[LlamaForCausalLM]) -> Target:
    register()
    model = kind(CONFIGS["llama"]()).eval()
    model.set_attn_implementation(NAME)
    model.load_state_dict(make_model("llama").state_dict())
    return Target(model, "mine")


def test_last_token_logits_only() -> None:
    with pytest.raises(ModelError, match=r"one row per candidate.*logits_to_keep") as caught:
        built(LastTokenOnly)
    assert caught.value.code == "DP252"


def test_all_rows_whatever_is_asked() -> None:
    tokens = random_tokens(9)
    stock, target = make_target("llama"), built(AllRows)
    expected = stock.forward([Segment(stock.new_sequence(), tokens, 4)]).logits
    assert torch.equal(target.forward([Segment(target.new_sequence(), tokens, 4)]).logits, expected)


def test_a_model_that_drops_rows_later_is_caught() -> None:
    target = make_target("llama")
    stock = target.model.forward

    def drops(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = stock(*args, **kwargs)
        out.logits = out.logits[:, 1:]
        return out

    target.model.forward = types.MethodType(drops, target.model)
    with pytest.raises(ModelError, match="returned 8 logit rows where 9") as caught:
        target.forward([Segment(target.new_sequence(), random_tokens(9), 0)])
    assert caught.value.code == "DP251"


def test_taps_and_context() -> None:
    target = make_target("llama")
    with pytest.raises(ModelError, match=r"0\.\.3.*got 4") as caught:
        target.forward([Segment(target.new_sequence(), random_tokens(3), 0)], taps=(4,))
    assert caught.value.code == "DP257"
    with pytest.raises(ModelError, match="512 tokens") as caught:
        target.forward([Segment(target.new_sequence(), random_tokens(513), 0)])
    assert caught.value.code == "DP258"
    with pytest.raises(ModelError) as caught:
        target.model(input_ids=random_tokens(3)[None])
    assert caught.value.code == "DP256"


_SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize(
    ("config", "match"),
    [(DogeConfig(**_SMALL), "a mask of its own"), (DiffLlamaConfig(**_SMALL), "attends more than once")],
    ids=["own mask", "attends twice"],
)
def test_attention_that_is_more_than_causal(config: Any, match: str, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    refuse(tmp_path, "DP253", match)


class Remembers(LlamaForCausalLM):
    """Mixes every token with the one before it in the same pass: state that nobody declared."""

    def forward(self, input_ids: Any = None, logits_to_keep: Any = 0, **others: Any) -> Any:
        embedded = self.model.embed_tokens(input_ids)
        mixed = embedded + torch.nn.functional.pad(embedded, (0, 0, 1, 0))[:, :-1]
        hidden = self.model(inputs_embeds=mixed, **others).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden[:, logits_to_keep]))


def test_undeclared_state_between_tokens() -> None:
    with pytest.raises(ModelError, match="in one pass or in several") as caught:
        built(Remembers).self_test()
    assert caught.value.code == "DP263"


def test_code_that_fails_under_draftproof_is_refused() -> None:
    class Fails(LlamaForCausalLM):
        def forward(self, *args: Any, **others: Any) -> Any:
            raise RuntimeError("no such thing")

    with pytest.raises(ModelError, match="no such thing") as caught:
        built(Fails)
    assert caught.value.code == "DP253"


def test_the_self_test_notices_stock_linears() -> None:
    from draftproof.models.linear import Route

    register()
    model = make_model("llama", scale=0.3)
    model.set_attn_implementation(NAME)
    assert Target(model, "mine", Route.PACKED).self_test()
    model = make_model("llama", scale=0.3)
    model.set_attn_implementation(NAME)
    assert not Target(model, "mine", Route.STOCK).self_test()
