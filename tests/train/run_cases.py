"""Whole training runs of a tiny drafter, in this process or in others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from draftproof.train.record import read_steps
from draftproof.train.run import TrainJob
from draftproof.train.settings import TrainSettings, preset

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """What a run is about."""

    model: str
    prompts: Path
    held_out: Path

    def job(self, out: Path) -> TrainJob:
        return TrainJob(
            self.model, out, self.held_out, (self.prompts,), device="cpu", dtype="float32", measure=False
        )


def tiny_settings(**changes: object) -> TrainSettings:
    """A recipe that takes a second."""
    small = {
        "steps": 12,
        "max_tokens": 24,
        "anchors": 4,
        "eval_steps": 5,
        "eval_prompts": 1,
        "eval_tokens": 8,
        "final_tokens": 12,
        "checkpoint_steps": 3,
        "precision": "float32",
    }
    return preset("tiny", **{**small, **changes})


def losses(out: Path) -> list[tuple[int, float]]:
    """The loss curve of a run."""
    return [(one.step, one.loss) for one in read_steps(out.with_name(out.name + ".training"))]


def start(
    case: Case,
    out: Path,
    settings: TrainSettings,
    kills: list[tuple[str, float]] | None = None,
    **environment: str,
) -> subprocess.Popen[str]:
    """A run in a process of its own.

    Args:
        kills: stages and seconds; the run is begun once for each, and killed so long after that stage has begun. The process
            prints a list of how these ended, as exit codes.
        environment: further variables.
    """
    said = json.dumps(
        [*map(str, (case.model, case.prompts, case.held_out, out)), asdict(settings), kills or []]
    )
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("run_alone.py")), said],
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'train'}", "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_on_two(case: Case, out: Path, settings: TrainSettings, **environment: str) -> None:
    """A run on two processes over gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        start(
            case,
            out,
            settings,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="2",
            LOCAL_WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            **environment,
        )
        for rank in (0, 1)
    ]
    try:
        ends = [process.communicate(timeout=150) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, err) in zip(processes, ends, strict=True):
        assert process.returncode == 0, err[-3000:]
