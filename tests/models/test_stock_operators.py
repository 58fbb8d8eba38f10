"""Operators the target keeps as PyTorch and Transformers have them: their rows must not depend on company either."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from support.tiny import make_target

WIDTHS = [16, 20, 60, 64, 100, 576, 577, 1536, 4096]
COUNTS = [1, 2, 3, 5, 8, 15, 16, 17, 64, 100, 255]


@pytest.fixture(params=[1, 2, 3], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def norms(width: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    return {
        "rms": LlamaRMSNorm(width),
        "gemma": Gemma3RMSNorm(width),
        "layer": torch.nn.LayerNorm(width),
        "torch-rms": torch.nn.RMSNorm(width),
        "softmax": lambda x: x.softmax(-1),
    }


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["rms", "gemma", "layer", "torch-rms", "softmax"])
def test_norms(kind: str, width: int, dtype: torch.dtype) -> None:
    norm = norms(width)[kind]
    if isinstance(norm, torch.nn.Module):
        torch.manual_seed(0)
        for parameter in norm.parameters():
            parameter.normal_()
        norm = norm.to(dtype)
    x = torch.randn(512, width, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = norm(x)
    for count in COUNTS:
        start = (count * 31) % (512 - count)
        assert torch.equal(norm(x[start : start + count]), whole[start : start + count]), count
        alone = torch.randn(count, width).to(dtype) * 50  # other values around one row of ours
        alone[count // 2] = x[7]
        assert torch.equal(norm(alone)[count // 2], whole[7]), count


@pytest.mark.parametrize("dim", [16, 20, 64, 80])
def test_rotation(dim: int) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 4, 90, dim), torch.randn(1, 2, 90, dim)
    angles = torch.randn(1, 90, dim)
    whole = apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    for start in range(0, 90, 7):
        rows = slice(start, start + 1 + start % 9)
        part = apply_rotary_pos_emb(
            q[:, :, rows], k[:, :, rows], angles.cos()[:, rows], angles.sin()[:, rows]
        )
        assert torch.equal(part[0], whole[0][:, :, rows])
        assert torch.equal(part[1], whole[1][:, :, rows])


@pytest.mark.parametrize("kind", ["llama-odd", "llama-yarn", "gemma3"])
def test_rotary_tables_do_not_depend_on_what_was_asked_first(kind: str) -> None:
    tables = [
        module for module in make_target(kind).model.modules() if type(module).__name__ == "RotaryTable"
    ]
    fresh = [module for module in make_target(kind).model.modules() if type(module).__name__ == "RotaryTable"]
    assert tables
    layer_type = ("sliding_attention",) if kind == "gemma3" else ()
    x, positions = torch.zeros(1, 1, 64), torch.tensor([[0, 5, 1023, 1024, 2500, 7]])
    for table, other in zip(tables, fresh, strict=True):
        together = table(x, positions, *layer_type)
        alone = [other(x, positions[:, i : i + 1], *layer_type) for i in (1, 3, 4, 0, 2, 5)]
        for part in (0, 1):
            assert torch.equal(
                together[part][:, [1, 3, 4, 0, 2, 5]], torch.cat([pair[part] for pair in alone], dim=1)
            )
            plain = table.inner(x, positions, *layer_type)[part]
            torch.testing.assert_close(together[part], plain, atol=1e-5, rtol=1e-5)
