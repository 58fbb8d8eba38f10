"""The benchmark on a tiny model: what runs, in which order, what is kept. Nothing here depends on how long anything takes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from draftproof import LLM, SamplingParams
from draftproof.bench import (
    BenchInterrupted,
    BenchOptions,
    BenchPrompt,
    read_results,
    run_bench,
    write_results,
)
from draftproof.bench import cell as cell_module
from draftproof.bench.passes import run_pass
from draftproof.errors import RequestError
from support.scripted import ScriptedDrafter

PROMPTS = [BenchPrompt("a", "one two"), BenchPrompt("b", "three"), BenchPrompt("a", "four")]
SMALL = BenchOptions(
    batches=(1, 2), modes=("off", "fixed=3"), temperatures=(0.0, 0.8), max_tokens=6, rounds=2, ignore_eos=True
)


class Ticks:
    """A clock that goes on by one second at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_pass_stamps_every_commit(plain: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    done = run_pass(plain, ["one", "two"], [params, replace(params, max_tokens=2)], Ticks())
    assert [len(output) for output in done.outputs] == [5, 2]
    assert [[one.tokens for one in mine] for mine in done.arrivals] == [[1] * 5, [1] * 2]
    assert all(list(mine) == sorted(mine, key=lambda one: one.seconds) for mine in done.arrivals)
    assert done.work.decode_steps == 4 + 1
    assert done.seconds > done.arrivals[0][-1].seconds
    (expected,) = plain.chat([{"role": "user", "content": "one"}], params)
    assert done.outputs[0] == expected.token_ids
    assert done.prompt_tokens[0] == len(expected.prompt_token_ids)


def test_token_ids_are_taken_as_they_are(plain: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    assert run_pass(plain, [[5, 6, 7]], [params]).prompt_tokens == [3]


def test_blocks_arrive_together(plain: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    (result,) = plain.chat([{"role": "user", "content": "one"}], params)
    drafter = ScriptedDrafter(
        {tuple(result.prompt_token_ids): result.token_ids}, period=0, max_draft_tokens=3
    )
    done = run_pass(plain.with_drafter(drafter, draft_mode="fixed=3"), ["one"], [params], Ticks())
    assert [one.tokens for one in done.arrivals[0]] == [1, 4, 4]
    assert done.work.accepted_by_position == [2, 2, 2]


def test_a_prompt_that_is_too_long_is_refused_and_nothing_is_left(plain: LLM) -> None:
    params = SamplingParams(max_tokens=2)
    with pytest.raises(RequestError):
        run_pass(plain, ["fine", "x" * 100_000], [params] * 2)
    assert plain.loop.unfinished == 0


def test_every_cell_runs_in_every_mode(llm: LLM, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = tmp_path / "results.json"
    results = run_bench(
        llm,
        PROMPTS,
        SMALL,
        groups=["all"],
        json_path=path,
        watcher=lambda *args: told.append(args),
        clock=Ticks(),
    )
    keys = [(cell.group, cell.batch, cell.temperature) for cell in results.cells]
    assert keys == [(g, b, t) for g in ("a", "b", "mixed") for b in (1, 2) for t in (0.0, 0.8)]
    for cell in results.cells:
        assert cell.complete
        assert cell.rounds == 2
        off, fixed = cell.modes
        assert (off.mode, fixed.mode) == ("off", "fixed=3")
        assert fixed.same_tokens is True
        assert off.output_tokens == fixed.output_tokens == 2 * cell.batch * 6
        assert off.acceptance_length == 1.0
        assert off.mean_draft_length == 0.0
        assert sum(fixed.drafted_by_position) > 0
        assert off.first_token_ms is not None
        assert off.inter_token_ms is not None
        assert off.shares is not None
        assert sum(asdict(off.shares).values()) == pytest.approx(1.0)
    assert told[-1][1:] == (12 * 3 * 2, 12 * 3 * 2)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert read_results(path) == results
    assert json.loads(path.read_text())["schema"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_modes_take_turns_and_prompts_change(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, tuple[object, ...], int | None]] = []

    def noted(engine: LLM, texts: list[str], params: list[SamplingParams], clock: object) -> object:
        if params[0].max_tokens > 1:
            ran.append((id(engine), tuple(texts), params[0].seed))
        return run_pass(engine, texts, params)

    monkeypatch.setattr(cell_module, "run_pass", noted)
    options = replace(SMALL, batches=(2,), temperatures=(0.0,), rounds=3, seed=10)
    run_bench(llm, PROMPTS, options)
    engines = [engine for engine, _, _ in ran]
    first, second = engines[:2]
    assert first != second
    # The round that does not count, then the three that do.
    assert engines == [first, second, first, second, second, first, first, second]
    texts = [texts for _, texts, _ in ran]
    assert texts[2:4] == texts[:2]
    assert texts[2::2] == texts[3::2] == [("one two", "three"), ("four", "one two"), ("three", "four")]
    assert [seed for _, _, seed in ran[2::2]] == [10, 12, 14]


def test_only_decoding_is_timed_in_the_decoding_pass(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []

    def noted(*args: object) -> object:
        passes.append(run_pass(*args))  # type: ignore[arg-type]
        return passes[-1]

    monkeypatch.setattr(cell_module, "run_pass", noted)
    long = [BenchPrompt("a", "x" * 200)]
    run_bench(llm, long, replace(SMALL, batches=(2,), temperatures=(0.0,), rounds=1, modes=("off",)))
    prompts, _, decoding = passes[-3:]
    assert prompts.cached_tokens == [0, 0]
    assert all(len(output) == 1 for output in prompts.outputs)
    assert min(decoding.cached_tokens) > 100


def test_a_second_run_measures_only_what_is_missing(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    options = replace(SMALL, batches=(1,), temperatures=(0.0,))
    first = run_bench(llm, PROMPTS, options, json_path=path)
    told: list[str] = []
    again = run_bench(llm, PROMPTS, options, json_path=path, watcher=lambda label, *_: told.append(label))
    assert again == first
    assert not told
    more = run_bench(
        llm,
        PROMPTS,
        replace(options, batches=(1, 2)),
        json_path=path,
        watcher=lambda label, *_: told.append(label),
    )
    assert set(told) == {"mixed, batch 2, greedy"}
    assert more.cells[0] == first.cells[0]
    assert [cell.batch for cell in read_results(path).cells] == [1, 2]


@pytest.mark.parametrize(
    "other",
    [
        {"max_tokens": 7},
        {"rounds": 1},
        {"seed": 1},
        {"modes": ("off",)},
        {"ignore_eos": False},
        {"top_p": 0.9},
    ],
)
def test_results_of_another_setup_are_not_mixed(llm: LLM, tmp_path: Path, other: dict[str, object]) -> None:
    path = tmp_path / "results.json"
    options = replace(SMALL, batches=(1,), temperatures=(0.0,), max_tokens=2)
    run_bench(llm, PROMPTS, options, json_path=path)
    before = path.read_bytes()
    with pytest.raises(RequestError, match=next(iter(other))) as caught:
        run_bench(llm, PROMPTS, replace(options, **other), json_path=path)  # type: ignore[arg-type]
    assert caught.value.code == "DP474"
    with pytest.raises(RequestError, match="prompts"):
        run_bench(llm, PROMPTS[:2], options, json_path=path)
    assert path.read_bytes() == before


def interrupt_at(count: int) -> object:
    seen = 0

    def watch(label: str, done: int, total: int) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            raise KeyboardInterrupt

    return watch


def test_an_interrupt_leaves_what_was_measured(llm: LLM, tmp_path: Path) -> None:
    """Two cells of (2 + 1 uncounted) rounds x 2 modes; each cell is told of once at its start, then after every round."""
    path = tmp_path / "results.json"
    options = replace(SMALL, batches=(1, 2), temperatures=(0.0,))
    with pytest.raises(BenchInterrupted) as caught:
        # The second cell's start is call 8; 9 and 10 do not count, 11 and 12 are its first round, 13 half of its second.
        run_bench(llm, PROMPTS, options, json_path=path, watcher=interrupt_at(13))  # type: ignore[arg-type]
    assert isinstance(caught.value, KeyboardInterrupt)
    kept = read_results(path)
    assert kept == caught.value.results
    assert [(cell.batch, cell.rounds, cell.complete) for cell in kept.cells] == [(1, 2, True), (2, 1, False)]
    told: list[str] = []
    whole = run_bench(llm, PROMPTS, options, json_path=path, watcher=lambda label, *_: told.append(label))
    assert set(told) == {"mixed, batch 2, greedy"}
    assert [(cell.batch, cell.rounds, cell.complete) for cell in whole.cells] == [(1, 2, True), (2, 2, True)]
    assert whole.cells[0] == kept.cells[0]


def test_an_interrupt_inside_a_step_leaves_the_engine_empty(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    step = llm.loop.step

    def interrupted() -> bool:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.loop, "step", interrupted)
    params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        run_pass(llm, ["one", "two"], [params] * 2)
    assert llm.loop.unfinished == 0


def test_modes_that_draft_need_a_drafter(plain: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        run_bench(plain, PROMPTS, SMALL)
    assert caught.value.code == "DP473"
    only_off = replace(SMALL, modes=("off",), batches=(1,), temperatures=(0.0,))
    results = run_bench(plain, PROMPTS, only_off)
    assert results.setup.drafter == "none"
    assert results.cells[0].modes[0].speed_over_off is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "setup": {}, "cells": []}']
)
def test_a_file_of_another_kind_is_refused(llm: LLM, tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        run_bench(llm, PROMPTS, SMALL, json_path=path)
    assert caught.value.code == "DP476"
    assert path.read_text(encoding="utf-8") == content


def test_a_failed_write_leaves_the_old_file(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    results = run_bench(llm, PROMPTS, replace(SMALL, batches=(1,), temperatures=(0.0,)), json_path=path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RequestError, match="No space left") as caught:
        write_results(path, replace(results, cells=[]))
    assert caught.value.code == "DP476"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_fields_of_a_later_version_are_passed_over(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = run_bench(llm, PROMPTS, replace(SMALL, batches=(1,), temperatures=(0.0,)), json_path=path)
    document = json.loads(path.read_text())
    document["new"] = document["setup"]["new"] = document["cells"][0]["new"] = 1
    document["cells"][0]["modes"][0]["new"] = 1
    path.write_text(json.dumps(document))
    assert read_results(path) == results
