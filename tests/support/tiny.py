"""Small random causal LMs of real architectures, built by Transformers itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    OlmoeConfig,
    Phi3Config,
    PhimoeConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

from draftproof.models.target import Target, TargetOptions

VOCAB = 320
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LAYERS = ["sliding_attention", "full_attention"] * 2
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_SIZES, tie_word_embeddings=True),
    "llama-odd": lambda: LlamaConfig(
        **{**_SIZES, "intermediate_size": 77}, head_dim=20, attention_bias=True, mlp_bias=True
    ),
    "llama-yarn": lambda: LlamaConfig(
        **_SIZES,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "qwen2": lambda: Qwen2Config(**_SIZES),
    "qwen3": lambda: Qwen3Config(**_SIZES, head_dim=16),
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=24),
    "gemma2": lambda: Gemma2Config(
        **_SIZES,
        head_dim=16,
        sliding_window=24,
        layer_types=_LAYERS,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
    ),
    "gemma3": lambda: Gemma3TextConfig(**_SIZES, head_dim=16, sliding_window=24, layer_types=_LAYERS),
    "phi3": lambda: Phi3Config(**_SIZES),
    "gpt2": lambda: GPT2Config(**_GPT2),
    "gpt-neox": lambda: GPTNeoXConfig(**{k: v for k, v in _SIZES.items() if k != "num_key_value_heads"}),
    "phimoe": lambda: PhimoeConfig(
        **_SIZES,
        sliding_window=24,
        num_local_experts=4,
        num_experts_per_tok=2,
        attention_bias=True,
        lm_head_bias=True,
    ),
    "qwen2-moe": lambda: Qwen2MoeConfig(
        **_SIZES,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=48,
    ),
    "gpt-oss": lambda: GptOssConfig(
        **_SIZES,
        head_dim=20,
        sliding_window=24,
        layer_types=_LAYERS,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
    "olmoe": lambda: OlmoeConfig(**_SIZES, num_experts=4, num_experts_per_tok=2),
}
"""One entry an architecture; small odd sizes where the common ones would hide a fault."""


def make_model(
    kind: str, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 0.12, vocab: int = VOCAB
) -> Any:
    """A random model. Weights are larger than a fresh initialisation, so that logits are peaked and differ by token."""
    torch.manual_seed(seed)
    config = CONFIGS[kind]()
    config.vocab_size = vocab
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, scale)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
    return model.eval().to(dtype)


def make_target(
    kind: str, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 0.12, vocab: int = VOCAB
) -> Target:
    """The same model as a target, loaded from a folder as a user's would be."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(kind, dtype, seed, scale, vocab).save_pretrained(folder)
        name = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[dtype]
        return Target.load(Path(folder), kind, TargetOptions(dtype=name, device="cpu"))


def random_tokens(count: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    """int64 ``[count]``, ids from 3 up (no special tokens)."""
    return torch.randint(3, vocab, (count,), generator=torch.Generator().manual_seed(seed))
