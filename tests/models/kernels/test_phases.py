"""Phases come one after the other, whole, for any number of threads that come whenever they like."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from draftproof.models.kernels.compiling import compiled
from draftproof.models.kernels.phases import (
    add_release,
    counters_for,
    done_of,
    load_acquire,
    pause,
    take,
    taken_of,
    wait,
    yield_core,
)

PHASES, TASKS = 300, 16


@compiled()
def passing_sums(counters, data, done_by, thread):  # type: ignore[no-untyped-def]
    """Every task sums the whole of the phase before, so one that begins too early comes out wrong."""
    for phase in range(data.shape[0] - 1):
        taken, done = taken_of(counters, phase), done_of(counters, phase)
        task = take(taken)
        while task < data.shape[1]:
            data[phase + 1, task] = data[phase].sum() % 1000003 + task
            done_by[phase, task] += 1
            done_by[data.shape[0], thread] += 1
            add_release(done, 1)
            task = take(taken)
        wait(done, data.shape[1])


@compiled()
def add_many(address, times):  # type: ignore[no-untyped-def]
    for _ in range(times):
        add_release(address, 3)


@compiled()
def take_many(address, seen):  # type: ignore[no-untyped-def]
    for _ in range(1000):
        seen[take(address)] += 1


@compiled()
def look(address):  # type: ignore[no-untyped-def]
    pause()
    yield_core()
    return load_acquire(address)


def run(threads: int, late: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    data = np.zeros((PHASES + 1, TASKS), np.int64)
    done_by = np.zeros((PHASES + 2, TASKS), np.int64)
    counters = counters_for(PHASES)

    def work(thread: int) -> None:
        if thread:
            time.sleep(late)
        passing_sums(counters.ctypes.data, data, done_by, thread)

    team = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join(120)
    assert not any(thread.is_alive() for thread in team)
    return data, done_by


def expected() -> np.ndarray:
    data = np.zeros((PHASES + 1, TASKS), np.int64)
    for phase in range(PHASES):
        data[phase + 1] = data[phase].sum() % 1000003 + np.arange(TASKS)
    return data


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_task_is_done_once_and_after_the_phase_before(threads: int) -> None:
    for _ in range(5):
        data, done_by = run(threads)
        assert np.array_equal(data, expected())
        assert (done_by[:PHASES] == 1).all()


def test_who_comes_when_all_is_over_finds_nothing_to_do() -> None:
    data, done_by = run(2, late=0.5)
    assert np.array_equal(data, expected())
    assert done_by[PHASES + 1, :2].sum() == PHASES * TASKS


def test_counters() -> None:
    counters = counters_for(2)
    assert counters.shape == (2, 16)
    base = counters.ctypes.data
    places = [taken_of(base, 0), done_of(base, 0), taken_of(base, 1), done_of(base, 1)]
    assert [place - base for place in places] == [0, 64, 128, 192]
    add_many(done_of(base, 1), 5)
    assert counters[1, 8] == 15
    assert look(done_of(base, 1)) == 15
    wait(done_of(base, 1), 15)
    wait(done_of(base, 1), 3)


def test_threads_never_get_the_same_number() -> None:
    counters, seen = counters_for(1), np.zeros(4000, np.int64)
    take_many(counters.ctypes.data, np.zeros(1000, np.int64))
    counters[:] = 0
    team = [threading.Thread(target=take_many, args=(counters.ctypes.data, seen)) for _ in range(4)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    assert (seen == 1).all()
    assert counters[0, 0] == 4000


def test_waiting_lets_others_work() -> None:
    counters = counters_for(1)
    place = done_of(counters.ctypes.data, 0)
    waiting = threading.Thread(target=wait, args=(place, 6))
    waiting.start()
    add_many(place, 1)
    assert waiting.is_alive()
    add_many(place, 1)
    waiting.join(60)
    assert not waiting.is_alive()
