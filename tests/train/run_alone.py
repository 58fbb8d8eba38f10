"""A run as a process of its own, which can be killed in one stage after the other. See `run_cases.start`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import torch
from run_cases import Case

from draftproof.train.bars import StageProgress
from draftproof.train.record import StepRecord
from draftproof.train.run import TrainJob, train
from draftproof.train.settings import TrainSettings
from draftproof.train.watch import Watch


class Killer(Watch):
    """Ends this process, without a chance to tidy up, so many seconds after a stage has begun, or as the next one begins."""

    def __init__(self, stage: str, seconds: float) -> None:
        self._stage, self._seconds, self._armed = stage, seconds, False

    def stage(self, progress: StageProgress) -> None:
        self._arm(progress.stage)

    def step(self, record: StepRecord, done: float) -> None:
        self._arm("training")

    def _arm(self, stage: str) -> None:
        if stage != self._stage:
            if self._armed:
                _die()
            return
        if not self._armed:
            self._armed = True
            timer = threading.Timer(self._seconds, _die)
            timer.daemon = True
            timer.start()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(job: TrainJob, settings: TrainSettings, stage: str, seconds: float) -> int:
    """Run in a child of this process, which has everything imported already. Returns the number of the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            train(job, settings, Killer(stage, seconds))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def shard_on_cpu() -> None:
    """Have accelerate spread the model by FSDP. It does so by itself on GPUs only, though PyTorch's FSDP knows gloo too."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    Accelerator(cpu=True)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="NO_WRAP", state_dict_type="FULL_STATE_DICT"
    )
    for shared in (AcceleratorState._shared_state, PartialState._shared_state):
        shared["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = plugin


def main() -> None:
    torch.set_num_threads(1)
    if os.environ.get("SHARD_ON_CPU"):
        shard_on_cpu()
    model, prompts, held_out, out, fields, kills = json.loads(sys.argv[1])
    taps = fields["taps"]
    settings = replace(TrainSettings(**fields), taps=None if taps is None else tuple(taps))
    job = Case(model, Path(prompts), Path(held_out)).job(Path(out))
    if not kills:
        sys.exit(0 if train(job, settings).finished else 7)
    print(json.dumps([killed(job, settings, *kill) for kill in kills]))


if __name__ == "__main__":
    main()
