"""The number of threads, on a simulated machine; and that torch uses it."""

from __future__ import annotations

import pytest
import torch

from draftproof import SamplingParams
from draftproof.engine.crew import Crew
from draftproof.models.kernels.packing import Precision
from support.engines import core_of, engine, outcome
from support.llms import Executor, make_drafter, named, tiny_llm

FULL, FEW = 0.0035, 0.0055
"""Seconds of a step with all threads and with fewer, on a quiet machine."""


class Machine:
    """A clock that steps move on, and cores that others take away at times.

    Attributes:
        crowd: times a second that a core is taken away.
        slow: what a step with all threads takes, times `FULL`.
    """

    def __init__(self, most: int = 2) -> None:
        self.now, self.taken, self.crowd, self.slow = 0.0, 0.0, 40.0, 1.0
        self.crew = Crew(most, lambda: self.now, lambda: int(self.taken))

    def step(self, rows: int = 1) -> float:
        full = self.crew.threads == self.crew.most
        seconds = (FULL * self.slow if full else FEW) * (1.0 + 0.1 * rows)
        self.now += seconds
        self.taken += seconds * self.crowd * (1.0 if full else 0.4)
        self.crew.done(rows, 0, seconds)
        return seconds

    def run(self, seconds: float, rows: int = 1) -> tuple[float, float]:
        """(seconds a step, share of steps on all threads) over some seconds."""
        end, spent, steps, full = self.now + seconds, 0.0, 0, 0
        while self.now < end:
            full += self.crew.threads == self.crew.most
            spent += self.step(rows)
            steps += 1
        return spent / steps, full / steps


def test_on_a_quiet_machine_all_threads_work() -> None:
    assert Machine().run(20.0)[1] == 1.0


@pytest.mark.parametrize("rows", [1, 8])
def test_where_a_core_is_taken_fewer_work(rows: int) -> None:
    machine = Machine()
    machine.run(2.0, rows)
    machine.crowd, machine.slow = 190.0, 4.0
    first, _ = machine.run(2.0, rows)
    assert first < 1.6 * FEW * (1.0 + 0.1 * rows)
    later, full = machine.run(30.0, rows)
    assert later < 1.06 * FEW * (1.0 + 0.1 * rows)
    assert full < 0.03


def test_when_the_others_have_gone_all_threads_come_back() -> None:
    machine = Machine()
    machine.crowd, machine.slow = 190.0, 4.0
    machine.run(60.0)
    machine.crowd, machine.slow = 40.0, 1.0
    machine.run(1.0)  # seen within a second, however long the others were there
    assert machine.run(20.0)[1] == 1.0


def test_where_all_threads_are_faster_all_the_same_they_work() -> None:
    """Cores are taken away, but there are enough of them."""
    machine = Machine(16)
    machine.crowd, machine.slow = 500.0, 1.0
    machine.run(5.0)
    assert machine.run(60.0)[1] > 0.9


def test_steps_of_unlike_sizes_are_not_compared() -> None:
    """Small steps with fewer threads must not look faster than large ones with all."""
    machine = Machine()
    machine.run(1.0, rows=64)
    machine.crowd = 190.0
    while machine.crew.threads == machine.crew.most:
        machine.step(rows=64)
    machine.run(2.0, rows=1)
    machine.crowd = 40.0
    machine.run(1.0, rows=1)
    assert machine.run(20.0, rows=1)[1] == 1.0


def test_one_thread_stays_one_and_no_counter_means_all() -> None:
    assert Machine(1).run(1.0)[1] == 1.0
    crew = Crew(4, count=lambda: None)
    crew.done(1, 0, 1.0)
    assert crew.threads == 4


def test_torch_uses_as_many_and_gets_its_own_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        crew = Crew(2)
        crew.threads = 1
        with crew.at_work():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        crew.threads = 2
        with crew.at_work():
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class Restless(Crew):
    """Changes the number of threads after every step."""

    def done(self, rows: int, drafted: int, seconds: float) -> None:
        self.threads = self.few if self.threads == self.most else self.most


@pytest.mark.parametrize("executor", [torch.bfloat16, torch.float32, Precision.INT4], ids=named)
def test_outputs_are_the_same_however_threads_come_and_go(executor: Executor) -> None:
    prompts = [list(range(5, 5 + length)) for length in (3, 40, 90)]
    asked = [
        SamplingParams(temperature=0.0, seed=4, max_tokens=24, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.8, top_p=0.95, seed=5, max_tokens=24, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=1.0, seed=6, max_tokens=24, ignore_eos=True, logprobs=2),
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        off = tiny_llm(dtype=executor)
        alone = [engine(off, None).generate([p], a)[0] for p, a in zip(prompts, asked, strict=True)]
        torch.set_num_threads(2)
        for drafter in (None, make_drafter(off, "dflash", 8)):
            llm = engine(off, drafter)
            core_of(llm)._crew = Restless(2)
            together = llm.generate(prompts, asked)
            assert [outcome(one) for one in together] == [outcome(one) for one in alone]
    finally:
        torch.set_num_threads(before)
