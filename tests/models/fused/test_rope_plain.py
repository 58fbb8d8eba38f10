"""Angles without Transformers' modelling code are Transformers' angles, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from draftproof.models.fused.rope import PlainAngles, RopeTable


@pytest.mark.parametrize(("theta", "dim"), [(10000.0, 64), (100000, 64), (1e6, 128), (10000.0, 24)])
def test_the_same_as_transformers(theta: float, dim: int) -> None:
    config = LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    theirs, ours = RopeTable(LlamaRotaryEmbedding(config)), RopeTable(PlainAngles(theta, dim))
    assert torch.equal(ours.up_to(3000)[:3000], theirs.up_to(3000)[:3000])


def test_the_fused_path_does_without_modelling_code() -> None:
    """It would cost seconds and 100 MB at every start."""
    program = "import sys, draftproof.engine.llm, draftproof.models.fused; print('transformers.modeling_utils' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "False", done.stderr
