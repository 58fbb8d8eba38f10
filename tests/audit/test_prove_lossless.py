"""`prove lossless` proves a sound engine, and finds the first differing token of a broken one."""

from __future__ import annotations

import json

import pytest
from broken import accept_a_wrong_draft, rows_see_their_company

from draftproof import LLM
from draftproof.audit import (
    LosslessOptions,
    as_document,
    as_table,
    as_text,
    lossless,
    prove_lossless,
    read_prompts,
)
from draftproof.audit.preemption import Span, copies_needed, pool_sizes
from draftproof.engine.core import EngineCore
from support.llms import tiny_llm

PROMPTS = read_prompts(None, 2)
OPTIONS = LosslessOptions(max_tokens=40)


def test_a_sound_engine_is_proven_and_every_way_really_happened(llm: LLM) -> None:
    told: list[tuple[str, int, int]] = []
    report = prove_lossless(llm, PROMPTS, OPTIONS, lambda *news: told.append(news))
    assert report.proven, as_text(as_table(report))
    assert report.row_invariant
    assert report.verdict.startswith("lossless: proven: 160 tokens of 4 requests are identical in 7 ways")
    cases = {case.name: case for case in report.cases}
    assert list(cases) == [
        "alone",
        "in one batch",
        "in one batch, draft mode auto",
        "in one batch, not drafted",
        "prefix cached",
        "preempted",
        "prompts in chunks of 16",
    ]
    drafting = ("alone", "in one batch", "prefix cached", "preempted", "prompts in chunks of 16")
    assert all(cases[name].drafted_tokens > 0 for name in drafting)
    assert cases["in one batch, not drafted"].drafted_tokens == 0
    assert int(cases["preempted"].evidence.split()[0]) > 0
    assert told[-1][1] == told[-1][2]
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_without_a_drafter_the_batches_are_compared(llm: LLM) -> None:
    report = prove_lossless(tiny_llm(), PROMPTS[:1], OPTIONS)
    assert report.proven, as_text(as_table(report))
    assert (report.drafter, len(report.cases)) == ("none", 5)


def test_one_wrong_draft_accepted_is_found_where_it_happened(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_a_wrong_draft(monkeypatch, position=7)
    report = prove_lossless(llm, PROMPTS[:1], OPTIONS)
    assert not report.proven
    assert "NOT PROVEN: alone: prompt 1, greedy, output token" in report.verdict
    alone, undrafted = report.cases[0], report.cases[3]
    assert undrafted.name == "in one batch, not drafted"
    assert undrafted.proven  # nothing is drafted there, so nothing can be wrong
    first = alone.differences[0]
    assert first.what == "token"
    assert first.position is not None
    assert first.position >= 7
    for seen in (first.expected, first.came):
        assert seen is not None
        assert seen.token_id is not None
        assert seen.margin is not None
        assert seen.margin >= 0
        assert seen.text == llm.tokenizer.decode([seen.token_id])
    assert first.expected != first.came
    assert first.detail in as_text(as_table(report))
    found = json.loads(json.dumps(as_document(report)))["cases"][0]["differences"][0]
    assert (found["position"], found["expected"]["token_id"]) == (first.position, first.expected.token_id)  # type: ignore[union-attr]


def test_rows_that_depend_on_their_company_are_found_by_their_bits(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_see_their_company(monkeypatch, size=1e-3)
    report = prove_lossless(llm, PROMPTS[:1], OPTIONS)
    assert not report.row_invariant
    assert not report.proven
    differences = [one for case in report.cases for one in case.differences]
    assert {one.what for one in differences} >= {"logprobs"}
    assert "lossless in distribution only" in as_text(as_table(report))


def test_a_failed_self_test_alone_is_enough(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.target, "self_test", lambda: False)
    report = prove_lossless(llm, PROMPTS[:1], LosslessOptions(max_tokens=8))
    assert not report.proven
    assert "self-test" in report.verdict


def test_blocks_that_are_kept_are_found(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = EngineCore.add

    def add(self: EngineCore, request: object) -> None:
        sound(self, request)  # type: ignore[arg-type]
        if self.memory.cache.num_free == self.memory.cache.num_blocks:
            self.memory.cache.reserve(self.memory.cache.open([1, 2], limit=0, drafter=None).table, 0, 1)

    monkeypatch.setattr(EngineCore, "add", add)
    report = prove_lossless(llm, PROMPTS[:1], LosslessOptions(max_tokens=8))
    assert not report.proven
    assert "after the last answer: 1 blocks still taken" in report.verdict


def test_time_that_is_over_proves_nothing(llm: LLM) -> None:
    report = prove_lossless(llm, PROMPTS[:1], LosslessOptions(max_tokens=4, budget_s=1e-9))
    assert not report.proven
    assert report.cases == []
    assert "time was over before: alone" in report.verdict


def test_a_pool_that_never_preempts_is_not_called_proven(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossless, "pool_sizes", lambda spans, least: [64])
    report = prove_lossless(llm, PROMPTS[:1], LosslessOptions(max_tokens=4))
    (case,) = [case for case in report.cases if case.name == "preempted"]
    assert not case.exercised
    assert not case.differences
    assert not report.proven
    assert "preempted: 0 preemptions in a pool of 64 blocks" in report.verdict


def test_pools_are_chosen_so_that_those_let_in_outgrow_them() -> None:
    spans = [Span(60, 70)] * 4  # one block each at the start, two in the end
    for size in pool_sizes(spans, 2):
        assert size >= 2
    # Five blocks: three are let in (a block each and one for each to grow), and want six.
    assert 5 in pool_sizes(spans, 2)
    assert 2 not in pool_sizes(spans, 2)  # one runs at a time
    assert copies_needed([Span(10, 20)], 4) == 12
    assert copies_needed(spans, 2) == 1
