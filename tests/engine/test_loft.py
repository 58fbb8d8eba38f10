"""Features that wait by block: whoever drafts has the context that its tokens give, however late it is made."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory import CONTEXT, ask, finished, taught

from draftproof import LLM
from draftproof.engine.economics import Economist
from draftproof.engine.loft import Loft, Pending, cut, gather
from draftproof.engine.sequence import KeptRows
from draftproof.models.fused import Precision
from support.engines import (
    WitnessDrafter,
    assert_clean,
    core_of,
    engine,
    outcome,
    random_prompt,
    run_all,
    short_llm,
    step_until_done,
)


def rows_of(pieces: list[KeptRows]) -> list[int]:
    return [int(row) for piece in pieces for row in piece.rows()[:, 0]]


some_pieces = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(1, 6), st.integers(1, 4)),
    min_size=1,
    max_size=6,
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(shapes=some_pieces, skip=st.integers(0, 30), count=st.integers(0, 30))
def test_pieces_are_joined_and_cut_as_lists_of_rows_are(
    shapes: list[tuple[int, int, int, int]], skip: int, count: int
) -> None:
    homes = [torch.arange(60.0)[:, None], torch.arange(100.0, 160.0)[:, None]]
    pieces = [KeptRows(homes[home], first, size, step) for home, first, size, step in shapes]
    before = rows_of(pieces)
    joined: list[KeptRows] = []
    for piece in pieces:
        gather(joined, [piece])
    assert rows_of(joined) == before
    assert rows_of(pieces) == before, "what is gathered stays as it was"
    assert rows_of(cut(joined, skip, count)) == before[skip : skip + count]
    assert rows_of(joined) == before


def test_what_goes_on_is_one_piece() -> None:
    home = torch.arange(60.0)[:, None]
    joined: list[KeptRows] = []
    gather(
        joined, [KeptRows(home, 3, 4), KeptRows(home, 7, 5), KeptRows(home, 20, 3, 2), KeptRows(home, 26, 1)]
    )
    assert [(piece.first, piece.count, piece.step) for piece in joined] == [(3, 9, 1), (20, 4, 2)]


def test_the_oldest_goes_first_and_use_makes_young() -> None:
    home, loft = torch.zeros(9, 1), Loft()
    for block in range(4):
        loft.put(block, Pending(block * 64, (KeptRows(home, 0, 2),)))
    loft.put(2, Pending(128, (KeptRows(home, 0, 5),)))
    loft.copy(1, 7)
    loft.copy(9, 3)  # nothing waits for 9, so nothing does for its copy
    assert loft.rows == 2 + 2 + 5 + 2
    assert loft.find(0) is not None
    assert loft.find(3) is None
    assert [block for block, _ in loft.take_oldest(7)] == [1, 2]
    assert loft.rows == 4
    loft.drop(0)
    assert loft.rows == 2


@pytest.mark.parametrize(
    ("most_waiting", "seed"), [(1, 0), (1, 1), (90, 2), (90, 3), (100_000, 0), (100_000, 2)]
)
def test_a_context_is_what_its_tokens_give_however_late(
    most_waiting: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that begin alike, second turns and choices; drafting, and times of rest, as chance has it."""
    luck = random.Random(seed)
    off = short_llm(CONTEXT)
    common = random_prompt(70, luck)
    first = [ask((*common, *random_prompt(luck.randrange(1, 40), luck)), 30, seed=k) for k in range(5)]
    turns = [
        ask((*one.prompt, *one.alone(off).token_ids, *random_prompt(luck.randrange(1, 20), luck)), 25, seed=k)
        for k, one in enumerate(first)
    ]
    choices = [ask((*common, *random_prompt(5, luck)), 12, seed=9, n=3, temperature=1.0)]
    drafter = taught(*first, *turns, *choices)
    llm = engine(off, drafter, mode="fixed=3", blocks=luck.choice([12, 40]))  # type: ignore[arg-type]
    core = core_of(llm)
    core.memory._most_waiting = most_waiting
    monkeypatch.setattr("draftproof.engine.memory.FLUSH_AT", most_waiting)
    resting = [False]
    share = luck.choice([0.5, 0.9])
    monkeypatch.setattr(Economist, "rests", lambda *_: luck.random() < share)
    monkeypatch.setattr(Economist, "idle", property(lambda _: resting[0]))
    core.memory.fills = lambda missing, to_come: luck.random() < 0.5
    for asks in (first, turns, choices, luck.sample([*first, *turns], 6), turns):
        resting[0] = luck.random() < 0.5
        results = run_all(llm, asks)
        assert [outcome(result) for result in results] == [outcome(one.alone(off)) for one in asks]
        assert_clean(llm)
        assert core.memory._loft.rows == sum(p.count for p in core.memory._loft._waiting.values())
    assert drafter.checked > 0


def trained(llm: LLM, *asks: object) -> None:
    for one in asks:
        finished(llm, one)  # type: ignore[arg-type]


def test_a_rest_gives_up_what_nobody_asks_for_and_prefixes_serve_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    off = short_llm(CONTEXT)
    asks = [ask(100, 20, seed=k) for k in range(4)]
    drafter = taught(*asks)
    llm = engine(off, drafter, mode="fixed=3")
    core = core_of(llm)
    resting = [True]
    monkeypatch.setattr(Economist, "idle", property(lambda _: resting[0]))
    monkeypatch.setattr(Economist, "rests", lambda *_: resting[0])
    core.memory.fills = lambda missing, to_come: not resting[0]
    core.memory._most_waiting = 150
    trained(llm, *asks)
    assert core.memory._loft.rows <= 150 + 128
    assert core.memory.upkeep.tokens == 0, "nothing was computed for drafts that nobody makes"
    again = finished(llm, asks[0]).result
    assert again.cached_tokens == 99, "the target's entries are enough while drafting rests"
    assert again.stats.drafted_tokens == 0
    resting[0] = core.memory.idle = False
    awake = finished(llm, asks[0]).result
    assert awake.stats.drafted_tokens > 0, "and are computed anew, with features, once it does not"
    assert drafter.checked > 0
    assert outcome(awake) == outcome(again) == outcome(asks[0].alone(off))
    assert finished(llm, asks[0]).result.cached_tokens == 99


def test_a_prefix_without_the_drafters_part_is_computed_anew_where_that_pays() -> None:
    one = ask(100, 12)
    llm = engine(short_llm(CONTEXT), taught(one), mode="fixed=3")
    core = core_of(llm)
    finished(llm, one)
    asked: list[tuple[int, int]] = []

    def fills(missing: int, to_come: int) -> bool:
        asked.append((missing, to_come))
        return len(asked) == 3

    core.memory.fills = fills
    for block in range(core.memory.cache.num_blocks):
        core.memory.cache.forget_drafter(block, 10)
    lookups = core.metrics.prefix_lookups
    runs = [finished(llm, one).result for _ in range(4)]
    assert [run.cached_tokens for run in runs] == [99, 99, 10, 99]
    assert [run.stats.drafted_tokens > 0 for run in runs] == [False, False, True, True]
    assert asked[0] == (99 - 10, 12), "the fourth run finds all of it"
    assert len(asked) == 3
    assert core.metrics.prefix_lookups - lookups == 4
    assert core.memory._loft.rows == sum(p.count for p in core.memory._loft._waiting.values())


def test_of_too_much_that_waits_the_longest_goes_undrafted_in_idle_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    off = short_llm(CONTEXT)
    asks = [ask(size, 40, seed=k) for k, size in enumerate((20, 30, 100, 110))]
    drafter = taught(*asks)
    llm = engine(off, drafter, mode="fixed=3")
    core = core_of(llm)
    idle = [True]
    monkeypatch.setattr(Economist, "idle", property(lambda _: idle[0]))
    monkeypatch.setattr(Economist, "rests", lambda *_: idle[0])
    core.memory._most_waiting = 120
    running = [one.submit(llm) for one in asks]
    core.memory.idle = True
    for _ in range(20):
        core.step()
    drafted = [one.request.sequences[0].running_memory.drafted for one in running]
    assert drafted == [True, True, False, False]
    assert core.memory.upkeep.tokens == 0
    idle[0] = False
    while core.unfinished:
        core.step()
    for one, asked in zip(running, asks, strict=True):
        assert outcome(one.result) == outcome(asked.alone(off))
    assert [one.result.stats.drafted_tokens > 0 for one in running] == drafted
    assert drafter.checked > 0
    assert_clean(llm)


def test_what_overflows_becomes_entries_while_drafting_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    off = short_llm(CONTEXT)
    asks = [ask(100, 20, seed=k) for k in range(4)]
    drafter = taught(*asks)
    llm = engine(off, drafter, mode="fixed=3")
    core = core_of(llm)
    monkeypatch.setattr(Economist, "rests", lambda *_: True)  # no draft that would make entries
    core.memory._most_waiting = 150
    trained(llm, *asks)
    assert core.memory._loft.rows <= 150 + 128
    assert core.memory.upkeep.tokens > 0
    for one in asks:
        assert finished(llm, one).result.cached_tokens == 99
    monkeypatch.setattr(Economist, "rests", lambda *_: False)
    for one in asks:
        result = finished(llm, one).result
        assert result.cached_tokens == 99
        assert result.stats.drafted_tokens > 0
        assert outcome(result) == outcome(one.alone(off))
    assert drafter.checked > 0


def test_features_of_a_failed_request_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Economist, "rests", lambda *_: True)
    llm = engine(short_llm(CONTEXT), WitnessDrafter(), mode="fixed=3")
    core = core_of(llm)
    running = ask(100, 20).submit(llm)
    core.step()
    core.step()
    assert core.memory._loft.rows > 0
    core._fail([running.request], RuntimeError("a failure"))  # type: ignore[arg-type]
    assert core.memory._loft.rows == 0


def test_what_waits_keeps_no_rows_of_others_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a step lie side by side: a batch's survivors, and prefixes, must not hold the whole of every step."""
    monkeypatch.setattr(Economist, "rests", lambda *_: True)
    off = short_llm(CONTEXT, dtype=Precision.FLOAT32)
    asks = [ask(10, 4 if k % 8 else 150, seed=k) for k in range(64)]
    llm = engine(off, WitnessDrafter(), mode="fixed=3")
    core = core_of(llm)
    running = [one.submit(llm) for one in asks]
    for _ in range(140):
        core.step()
    alive = [memory for one in running for s in one.request.sequences if (memory := s.memory) is not None]
    assert len(alive) == 8
    pieces = [piece for memory in alive for piece in memory.waiting]
    pieces += [piece for pending in core.memory._loft._waiting.values() for piece in pending.pieces]
    assert _held(pieces) <= sum(memory.waiting_length for memory in alive) + core.memory._loft.rows + 2 * 512
    step_until_done(llm)
    pieces = [piece for pending in core.memory._loft._waiting.values() for piece in pending.pieces]
    assert _held(pieces) == core.memory._loft.rows > 1000
    for one, asked in zip(running, asks, strict=True):
        assert outcome(one.result) == outcome(asked.alone(off))


def _held(pieces: list[KeptRows]) -> int:
    """Rows of all tensors that some pieces keep alive."""
    homes = {piece.features.untyped_storage().data_ptr(): piece.features for piece in pieces}
    width = pieces[0].features.shape[1] * pieces[0].features.element_size()
    return sum(home.untyped_storage().nbytes() for home in homes.values()) // width
