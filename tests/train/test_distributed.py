"""Two CPU processes over gloo learn what one learns with twice the passes a step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from run_cases import Case, losses, run_on_two, tiny_settings

from draftproof import LLM
from draftproof.errors import RequestError
from draftproof.train.loop import passes_a_step
from draftproof.train.run import train

SETTINGS = tiny_settings(batch=4, micro_batch=1, steps=8, eval_steps=4)
SHARDED = {"SHARD_ON_CPU": "1"}


@pytest.fixture(scope="module")
def alone(case: Case, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float]]:
    out = tmp_path_factory.mktemp("alone") / "drafter"
    train(case.job(out), SETTINGS)
    return losses(out)


@pytest.mark.parametrize("spread", ["ddp", "fsdp"])
def test_two_processes_have_the_loss_curve_of_one(
    spread: str, case: Case, alone: list[tuple[int, float]], tmp_path: Path
) -> None:
    out = tmp_path / "drafter"
    for _ in range(2):
        run_on_two(case, out, SETTINGS, **(SHARDED if spread == "fsdp" else {}))
        together = losses(out)
        assert [step for step, _ in together] == list(range(1, 9))
        assert [loss for _, loss in together] == pytest.approx([loss for _, loss in alone], rel=2e-4)
        # As if it had been killed before the last checkpoint: the second time it goes on from the one before.
        newest, before = sorted((tmp_path / "drafter.training" / "checkpoints").iterdir(), reverse=True)
        assert before.name == "step-00000006"
        shutil.rmtree(newest)
    llm = LLM(case.model, str(out), dtype="float32", draft_mode="fixed=7")
    assert llm.generate("Tell me")[0].token_ids == llm.with_drafter(None).generate("Tell me")[0].token_ids


def test_muon_under_fsdp_is_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="needs whole matrices, and FSDP has them in slices"):
        run_on_two(
            case, tmp_path / "drafter", tiny_settings(optimizer="muon", batch=4, micro_batch=1), **SHARDED
        )


def test_a_batch_that_cannot_be_shared_out_is_refused() -> None:
    assert passes_a_step(tiny_settings(batch=8, micro_batch=2), 2) == 2
    with pytest.raises(RequestError, match="micro_batch x processes = 2 x 3") as refused:
        passes_a_step(tiny_settings(batch=8, micro_batch=2), 3)
    assert refused.value.code == "DP520"
