"""`prove whole` proves a sound engine, and finds features that drafting changes, that nobody keeps, or that leak."""

from __future__ import annotations

import pytest
from broken import accept_a_wrong_draft

from draftproof import LLM
from draftproof.audit import (
    FeatureRow,
    WholeOptions,
    WholeReport,
    as_table,
    as_text,
    prove_whole,
    read_prompts,
)
from draftproof.engine import intake
from draftproof.engine.core import EngineCore
from draftproof.errors import RequestError
from draftproof.sampling import GrammarCompiler
from support.llms import tiny_llm

PROMPTS = read_prompts(None, 1)
OPTIONS = WholeOptions(max_tokens=16)


def only(*names: str) -> WholeOptions:
    return WholeOptions(max_tokens=16, only=names)


def rows_of(report: WholeReport) -> dict[str, FeatureRow]:
    return {row.name: row for row in report.rows}


def test_a_sound_engine_is_proven(llm: LLM) -> None:
    report = prove_whole(llm, PROMPTS, OPTIONS)
    assert report.proven, as_text(as_table(report))
    rows = rows_of(report)
    assert {row.state for row in report.rows} == {"identical"}
    assert len(rows) == 20
    assert all(row.tokens > 0 for row in report.rows)
    assert rows["n = 3"].tokens == 3 * rows["plain"].tokens
    assert report.drafted_tokens > 0
    assert "20 features give the same" in report.verdict


def test_drafts_accepted_wrongly_show_in_the_features(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_a_wrong_draft(monkeypatch, position=3)
    report = prove_whole(llm, PROMPTS, only("plain", "streaming"))
    assert not report.proven
    rows = rows_of(report)
    assert rows["plain"].state == "differs"
    assert rows["plain"].difference is not None
    assert "output token" in rows["plain"].detail
    assert rows["streaming"].state == "differs"
    assert "differs" in report.verdict


def test_rules_that_nobody_keeps_are_found_though_both_sides_agree(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake.RowRules, "of", staticmethod(lambda *arguments, **options: None))
    rows = rows_of(prove_whole(llm, PROMPTS, only("plain", "banned tokens", "choice")))
    assert rows["plain"].state == "identical"
    assert rows["banned tokens"].state == "violated"
    assert rows["choice"].state == "violated"
    assert "banned tokens came" in rows["banned tokens"].detail


def test_what_is_refused_with_and_without_a_drafter_is_said_and_counts_against_neither(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: GrammarCompiler, structured: object) -> object:
        raise RequestError("DP445", "no grammars here")

    monkeypatch.setattr(GrammarCompiler, "compile", refuse)
    report = prove_whole(llm, PROMPTS, only("plain", "JSON schema", "regex", "choice"))
    rows = rows_of(report)
    for name in ("JSON schema", "regex", "choice"):
        assert (rows[name].state, rows[name].detail) == ("refused", "DP445 no grammars here")
    assert report.proven, as_text(as_table(report))
    assert "refused with and without a drafter: JSON schema, regex, choice" in report.verdict


def test_what_only_a_drafter_has_refused_is_a_failure(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = EngineCore.add

    def add(self: EngineCore, request: object) -> None:
        if self.drafter is not None and request.sampling.logprobs is not None:  # type: ignore[attr-defined]
            raise RequestError("DP439", "no log-probabilities with a drafter")
        sound(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(EngineCore, "add", add)
    report = prove_whole(llm, PROMPTS, only("plain", "log-probabilities"))
    assert not report.proven
    rows = rows_of(report)
    assert rows["log-probabilities"].state == "failed"
    assert "with drafting alone: DP439" in rows["log-probabilities"].detail
    assert rows["plain"].state == "identical"


def test_an_abort_that_keeps_its_blocks_is_found(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineCore, "abort", lambda self, request_id: False)
    rows = rows_of(prove_whole(llm, PROMPTS, only("plain", "abort")))
    assert rows["abort"].state == "violated"
    assert "blocks still taken, 1 outputs still there" in rows["abort"].detail
    assert rows["plain"].state == "identical"


def test_events_that_lose_text_are_found(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = LLM.stream

    def stream(self: LLM, *arguments: object) -> object:
        yield from list(sound(self, *arguments))[1:]  # type: ignore[arg-type]

    monkeypatch.setattr(LLM, "stream", stream)
    rows = rows_of(prove_whole(llm, PROMPTS, only("streaming")))
    assert rows["streaming"].state == "violated"
    assert "joined they are not the result" in rows["streaming"].detail


def test_it_needs_a_drafter_and_time(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        prove_whole(tiny_llm(), PROMPTS)
    assert caught.value.code == "DP463"
    with pytest.raises(RequestError, match="got 'plane'") as caught:
        prove_whole(llm, PROMPTS, only("plain", "plane"))
    assert caught.value.code == "DP462"
    report = prove_whole(llm, PROMPTS, WholeOptions(max_tokens=4, budget_s=1e-9))
    assert not report.proven
    assert {row.state for row in report.rows} == {"not run"}
