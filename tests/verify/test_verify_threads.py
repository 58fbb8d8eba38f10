"""Sharing work among threads: everything gets done, failures come through, callers do not get in each other's way."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from verify_cases import RULES, make_case, outcome

from draftproof.verify.kernels import team


@pytest.fixture(params=["torch's workers", "new threads"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "new threads":
        monkeypatch.setattr(team, "_gnu_openmp", lambda: None)
    elif team._gnu_openmp() is None:
        pytest.skip("torch does not bring GNU OpenMP here")
    return str(request.param)


@pytest.fixture
def four_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def taker(count: int, done: list[int], seen: set[int]) -> Callable[[], None]:
    queue, together = iter(range(count)), threading.Barrier(2)

    def work() -> None:
        for item in queue:
            seen.add(threading.get_ident())
            if item < 2:
                together.wait(timeout=60)  # passes only if two threads are at work at the same time
            done.append(item)

    return work


@pytest.mark.usefixtures("four_threads")
def test_all_work_is_done_once_and_side_by_side(where: str) -> None:
    done: list[int] = []
    seen: set[int] = set()
    team.run_together(taker(50, done, seen), 4)
    assert sorted(done) == list(range(50))
    assert len(seen) >= 2


@pytest.mark.usefixtures("four_threads")
def test_a_failure_reaches_the_caller(where: str) -> None:
    def work() -> None:
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        team.run_together(work, 4)
    done: list[int] = []
    team.run_together(taker(5, done, set()), 4)  # and the next call works
    assert sorted(done) == list(range(5))


def test_one_thread_needs_no_team() -> None:
    seen: list[int] = []
    team.run_together(lambda: seen.append(threading.get_ident()), 1)
    assert seen == [threading.get_ident()]


@pytest.mark.usefixtures("four_threads")
def test_torch_keeps_its_threads(where: str) -> None:
    """A later parallel operation of torch works, and with as many threads as before."""
    team.run_together(lambda: None, 4)
    assert torch.get_num_threads() == 4
    assert torch.ones(4_000_000).sum().item() == 4_000_000


@pytest.mark.usefixtures("four_threads")
def test_results_are_the_same_on_either_kind_of_thread(where: str) -> None:
    case = make_case(1, 6, 3, 40_000, "normal", torch.float32, "plain")
    results = [outcome(case, rule) for rule in RULES]
    torch.set_num_threads(1)
    assert [outcome(case, rule) for rule in RULES] == results


def test_callers_on_several_threads_do_not_disturb_each_other() -> None:
    cases = [
        make_case(seed, 5, 3, 30_000 + 100 * seed, "normal", torch.float32, "plain") for seed in range(4)
    ]
    expected = [[outcome(case, rule) for rule in RULES] for case in cases]
    wrong: list[int] = []

    def call(i: int) -> None:
        for _ in range(5):
            if [outcome(cases[i], rule) for rule in RULES] != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
