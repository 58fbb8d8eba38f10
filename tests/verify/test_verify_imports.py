"""The room works with nothing but torch and numpy, and without numba's conveniences."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BODY = """
import torch
from draftproof.verify import (
    SamplingInfo, compute_dflash_correct_drafts_and_bonus, compute_dflash_sampling_correct_drafts_and_bonus,
    gumbel_choice, kernels, target_probs, verify_drafter_invariant, verify_rejection,
)
generator = torch.Generator().manual_seed(0)
logits = torch.randn(6, 100, generator=generator) * 3
candidates = torch.randint(0, 100, (2, 3), generator=generator)
info = SamplingInfo.of(temperature=0.8, top_p=0.9, batch_size=2)
seeds, positions = torch.tensor([1, 2]), torch.tensor([0, 5])
coins, finals = torch.rand(2, 3, generator=generator), torch.rand(2, generator=generator)
for t in range(2):
    candidates[:, t + 1] = gumbel_choice(logits=logits[t::3], sampling_info=info, seeds=seeds, positions=positions + t)
print(compute_dflash_correct_drafts_and_bonus(candidates=candidates, target_predict=logits.argmax(-1).view(2, 3)))
print(verify_drafter_invariant(candidates=candidates, next_token_logits=logits, sampling_info=info, seeds=seeds,
                               positions=positions))
print(compute_dflash_sampling_correct_drafts_and_bonus(
    candidates=candidates, next_token_logits=logits, sampling_info=info, uniform_samples=coins,
    uniform_samples_for_final_sampling=finals))
print(verify_rejection(candidates=candidates, next_token_logits=logits, draft_probs=torch.full((2, 2, 100), 0.01),
                       sampling_info=info, uniform_samples=coins, uniform_samples_for_final_sampling=finals))
print(target_probs(logits[:2], info).sum().item())
"""

BLOCK = """
import importlib.abc, sys

ALLOWED = {"torch", "numpy", "draftproof"}

class OnlyTheAllowed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        root = name.split(".")[0]
        if root in ALLOWED or root in sys.stdlib_module_names or root.startswith("_"):
            return None
        if root in TORCH_OWN:
            return None
        raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)

import torch  # whatever torch itself wants may be there, but not for us
TORCH_OWN = {name.split(".")[0] for name in sys.modules} - {"numba", "transformers", "scipy", "rich", "hypothesis"}
sys.meta_path.insert(0, OnlyTheAllowed())
"""


def run(code: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | (environment or {}),
        check=False,
    )


def test_works_with_torch_and_numpy_alone() -> None:
    checks = "import sys\nassert 'numba' not in sys.modules and not kernels.available(logits)\n"
    blocked = run(BLOCK + BODY + checks)
    assert blocked.returncode == 0, blocked.stderr
    free = run(BODY)
    assert free.returncode == 0, free.stderr
    assert blocked.stdout == free.stdout


def test_importing_loads_neither_numba_nor_the_rest_of_the_package() -> None:
    code = """
    import sys
    import draftproof.verify
    unwanted = {"numba", "transformers", "rich", "typer", "scipy"} & set(sys.modules)
    rooms = {name for name in sys.modules if name.startswith("draftproof.")}
    strangers = {name for name in rooms if name.split(".")[1] not in ("verify", "errors")}
    assert not unwanted and not strangers, (unwanted, strangers)
    """
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_kernels_work_where_no_cache_can_be_written(tmp_path: Path) -> None:
    """Neither beside the sources nor in the user's cache folder: a file stands where each folder would go."""
    pytest.importorskip("numba")
    import draftproof

    source = Path(draftproof.__file__).parent
    copy = tmp_path / "copy" / "draftproof"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "verify" / "kernels" / "__pycache__").write_text("in the way")
    (tmp_path / "home").write_text("in the way")
    nowhere = str(tmp_path / "home" / "user")
    code = f"""
import draftproof, torch
assert draftproof.__file__.startswith({str(tmp_path)!r}), draftproof.__file__
from draftproof.verify import SamplingInfo, gumbel_choice, kernels
logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(0))
arguments = dict(sampling_info=SamplingInfo.of(temperature=0.8), seeds=torch.tensor([1]), positions=torch.tensor([0]))
choice = gumbel_choice(logits=logits, **arguments)
assert kernels.available(logits)
from draftproof.verify.kernels import compiled
assert type(compiled.walk_drafter_invariant._cache).__name__ == "NullCache"
kernels.available = lambda logits: False
assert torch.equal(choice, gumbel_choice(logits=logits, **arguments))
"""
    environment = {
        "PYTHONPATH": str(copy.parent),
        "HOME": nowhere,
        "XDG_CACHE_HOME": nowhere,
        "NUMBA_CACHE_DIR": "",
    }
    result = run(code, environment)
    assert result.returncode == 0, result.stderr
