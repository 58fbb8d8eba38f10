"""`prove speed` on made-up measurements, and with a clock that the models themselves move. Nothing here is timed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from draftproof import LLM
from draftproof.audit import SpeedOptions, as_document, as_table, as_text, prove_speed, read_prompts
from draftproof.audit.runs import AuditRequest
from draftproof.audit.speed import FLOOR, Drafting, Run, Side
from draftproof.errors import RequestError
from draftproof.models.drafters.base import DraftProposal, DraftRequest
from draftproof.models.target import Target
from support.llms import make_drafter, tiny_llm
from support.scripted import ScriptedDrafter

PROMPTS = read_prompts(None, 3)


class Scripted:
    """Measurements as told: `ratios[i]` is the speed with over without in pair i; 10 tokens a request, 1 s without."""

    def __init__(self, ratios: Sequence[float], differ: bool = False) -> None:
        self.ratios, self.differ = list(ratios), differ
        self.log: list[tuple[Side, tuple[int, ...]]] = []

    def prepare(self, requests: Sequence[AuditRequest]) -> None:
        self.log.append(("with", ()))

    def run(self, side: Side, requests: Sequence[AuditRequest]) -> Run:
        self.log.append((side, tuple(request.prompt for request in requests)))
        pair = (self.log.count(("with", ())) - 2) % len(self.ratios)  # one preparation for the warm-up
        outputs = [[side == "with"] * 10 if self.differ else [0] * 10 for _ in requests]
        return Run(outputs, 1.0 / self.ratios[pair] if side == "with" else 1.0)  # type: ignore[arg-type]

    def drafting(self) -> Drafting:
        return Drafting(2.5, [1, 0, 3])


def prove(llm: LLM, ratios: Sequence[float], **options: object) -> tuple[Scripted, object]:
    measure = Scripted(ratios, differ=bool(options.pop("differ", False)))
    chosen = SpeedOptions(**{"batches": (1,), "pairs": len(ratios), **options})  # type: ignore[arg-type]
    return measure, prove_speed(llm, PROMPTS, chosen, measure=measure)


@pytest.mark.parametrize(
    ("ratios", "state"),
    [
        ([1.5 + 0.01 * index for index in range(15)], "proven"),
        ([FLOOR] * 15, "proven"),
        ([1.0] * 12 + [0.5] * 3, "proven"),  # three outliers of 15 do not reach the interval
        ([1.0] * 11 + [0.5] * 4, "noisy"),
        ([0.9, 1.1] * 8, "noisy"),
        ([0.96] * 15, "slower"),
        ([0.5] * 15, "slower"),
    ],
)
def test_the_verdict_is_where_the_interval_lies(llm: LLM, ratios: list[float], state: str) -> None:
    _, report = prove(llm, ratios)
    (row,) = report.rows
    assert row.state == state
    assert report.proven == (state == "proven")
    assert report.proven == (row.low >= FLOOR)
    assert "weak" not in report.verdict
    said = {"proven": "proven", "noisy": "too noisy at batch 1", "slower": "slower at batch 1"}[state]
    assert said in report.verdict
    assert row.ratios == pytest.approx(ratios)


def test_pairs_go_a_b_b_a_over_changing_prompts(llm: LLM) -> None:
    measure, _ = prove(llm, [1.0] * 4, batches=(2,))
    runs = [(side, prompts) for side, prompts in measure.log if prompts][2:]  # the first two warm up
    assert [side for side, _ in runs] == ["with", "without", "without", "with"] * 2
    assert [prompts for _, prompts in runs][::2] == [(1, 2), (3, 1), (2, 3), (1, 2)]
    assert [prompts for _, prompts in runs][1::2] == [(1, 2), (3, 1), (2, 3), (1, 2)]


def test_few_pairs_are_said_to_be_weak(llm: LLM) -> None:
    _, report = prove(llm, [1.2] * 4)
    assert report.proven
    assert "weak: 4 pairs" in report.verdict
    assert "the interval covers 88%" in as_text(as_table(report))


def test_outputs_that_differ_are_no_proof(llm: LLM) -> None:
    _, report = prove(llm, [2.0] * 15, differ=True)
    assert not report.proven
    assert "outputs differ" in report.verdict


def test_the_worst_batch_decides_and_is_named(llm: LLM) -> None:
    class SlowInCompany(Scripted):
        def run(self, side: Side, requests: Sequence[AuditRequest]) -> Run:
            run = super().run(side, requests)
            slower = 2.0 if side == "with" and len(requests) > 1 else 1.0
            return Run(run.outputs, run.seconds * slower)

    options = SpeedOptions(batches=(1, 4), pairs=15)
    report = prove_speed(llm, PROMPTS, options, measure=SlowInCompany([1.3] * 15))
    assert [row.state for row in report.rows] == ["proven", "slower"]
    assert not report.proven
    assert "slower at batch 4" in report.verdict


def test_table_and_document_tell_how_it_drafted(llm: LLM) -> None:
    _, report = prove(llm, [1.2] * 15)
    text = as_text(as_table(report))
    assert "steps by draft length 0: 1, 2: 3" in text
    assert "order statistics" in text
    row = json.loads(json.dumps(as_document(report), allow_nan=False))["rows"][0]
    assert (row["acceptance_length"], row["draft_lengths"]) == (2.5, [1, 0, 3])
    assert row["tokens_per_second"] == pytest.approx(12.0)


def test_time_that_is_over_leaves_fewer_pairs_or_none(llm: LLM) -> None:
    seconds = iter(range(10_000))
    options = SpeedOptions(batches=(1, 4), pairs=15, budget_s=8)
    report = prove_speed(llm, PROMPTS, options, measure=Scripted([1.2] * 15), clock=lambda: next(seconds))
    assert [row.state for row in report.rows] == ["proven", "unmeasured"]
    assert 0 < len(report.rows[0].ratios) < 15
    assert not report.proven
    assert math.isnan(report.rows[1].median)
    assert json.loads(json.dumps(as_document(report), allow_nan=False))["rows"][1]["median"] is None


class Watch:
    """A clock that stands still unless a model moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("drafting_costs", "state"), [(0.1, "proven"), (20.0, "slower")])
def test_engines_with_a_cheap_and_with_a_sleeping_drafter(
    monkeypatch: pytest.MonkeyPatch, drafting_costs: float, state: str
) -> None:
    """Each pass of the target takes a second, each of the drafter what it is told; the drafter knows the answers."""
    watch, plain = Watch(), tiny_llm()
    forward = Target.forward

    def slow_forward(self: Target, *arguments: object, **options: object) -> object:
        watch.now += 1.0
        return forward(self, *arguments, **options)  # type: ignore[arg-type]

    class Sleepy(ScriptedDrafter):
        def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
            watch.now += drafting_costs
            return super().propose(requests)

    monkeypatch.setattr(Target, "forward", slow_forward)
    scripts = {}
    for prompt in PROMPTS:
        (result,) = plain.chat([{"role": "user", "content": prompt.text}], params(12))
        scripts[tuple(result.prompt_token_ids)] = result.token_ids
    llm = plain.with_drafter(Sleepy(scripts, period=0, max_draft_tokens=3), draft_mode="off")
    options = SpeedOptions(batches=(1, 2), pairs=6, max_tokens=12, draft_mode="fixed=3")
    report = prove_speed(llm, PROMPTS, options, clock=watch)
    assert [row.state for row in report.rows] == [state] * 2, as_text(as_table(report))
    assert report.proven == (state == "proven")
    assert all(row.same_tokens for row in report.rows)
    assert all(row.acceptance_length > 2.5 for row in report.rows)
    assert all(row.mean_draft_length > 1.5 for row in report.rows)
    # 12 tokens: one with what is left of the prompt, then 11 by blocks of up to four.
    if drafting_costs == 0.1:
        assert all(row.median == pytest.approx(12 / (4 + 0.3), rel=0.05) for row in report.rows)


def params(max_tokens: int) -> object:
    from draftproof import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def test_it_needs_a_drafter_and_sizes_in_range(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        prove_speed(tiny_llm(), PROMPTS)
    assert caught.value.code == "DP463"
    for wrong in (
        {"batches": ()},
        {"batches": (1, 0)},
        {"pairs": 0},
        {"max_tokens": 0},
        {"draft_mode": "off"},
        {"draft_mode": "fixed=0"},
    ):
        with pytest.raises(RequestError) as caught:
            SpeedOptions(**wrong)  # type: ignore[arg-type]
        assert caught.value.code == "DP462"
    assert make_drafter(tiny_llm(), "ngram", 4).max_draft_tokens == 3
