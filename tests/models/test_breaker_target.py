"""Corners in which a target was once wrong, not row-invariant or refused for no reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, JetMoeConfig

from draftproof.errors import ModelError
from draftproof.models import kernels
from draftproof.models.attention_pass import ForwardPass
from draftproof.models.attention_reference import AttentionRule
from draftproof.models.kv import LayerShape, PrivateKV, TargetPages
from draftproof.models.linear import Route, RowInvariantLinear
from draftproof.models.rows import Segment
from draftproof.models.target import Target, TargetOptions
from support.tiny import random_tokens


@pytest.fixture(params=[1, 3, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("head_dim", [20, 36, 40, 72, 100, 128])
@pytest.mark.parametrize("group", [1, 5, 8])
def test_one_key_head_of_any_width_with_any_number_of_threads(
    threads: int, head_dim: int, group: int, compiled: bool
) -> None:
    del threads
    if compiled and not kernels.available(torch.device("cpu"), torch.float32):
        pytest.skip("needs the compiled kernel")
    shape = LayerShape(1, head_dim, head_dim)
    generator = torch.Generator().manual_seed(head_dim)
    count, rule = 70, AttentionRule(head_dim**-0.5)
    queries = torch.randn(group, count, head_dim, generator=generator)
    keys, values = torch.randn(2, 1, count, head_dim, generator=generator)

    def run(lengths: list[int]) -> torch.Tensor:
        kv, rows = PrivateKV(TargetPages([shape], 0, torch.float32, queries.device)), []
        for length in lengths:
            part = slice(kv.length, kv.length + length)
            current = ForwardPass([Segment(kv, torch.zeros(length, dtype=torch.long), 0)], compiled)
            rows.append(current.attend(0, queries[:, part], keys[:, part], values[:, part], rule))
            kv.length += length
        return torch.cat(rows)

    whole = run([count])
    for lengths in ([1] * count, [7, 33, 17, 1, 12], [17, 33, 20]):
        assert torch.equal(run(lengths), whole), lengths


@pytest.mark.parametrize(("inputs", "outputs"), [(7, 8), (31, 2), (77, 3), (250, 8), (250, 100)])
def test_tiles_of_odd_widths(inputs: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    x = torch.randn(70, inputs, generator=generator)
    linear = RowInvariantLinear(weight, None, Route.TILES)
    whole = linear(x)
    for start in range(1, 17):
        assert torch.equal(linear(x[start : start + 40].clone()), whole[start : start + 40]), start


_SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def test_attention_in_both_directions_is_refused(tmp_path: Path) -> None:
    config = Gemma3TextConfig(
        **_SIZES,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"],
        use_bidirectional_attention=True,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError):
        Target.load(tmp_path, "mine", TargetOptions(device="cpu"))


def test_a_model_that_views_its_attention_output(tmp_path: Path) -> None:
    """Where every query head has a key head of its own the output must be contiguous: some models `view` it."""
    torch.manual_seed(0)
    config = JetMoeConfig(
        **_SIZES, num_key_value_heads=4, kv_channels=16, num_local_experts=4, num_experts_per_tok=1
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    tokens = random_tokens(12)
    with torch.no_grad():
        expected = stock(input_ids=tokens[None], use_cache=False).logits[0]
    target = Target.load(tmp_path, "mine", TargetOptions(device="cpu"))
    logits = target.forward([Segment(target.new_sequence(), tokens, 0)]).logits
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)
