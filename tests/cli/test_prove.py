"""`draftproof prove` on a small random model: verdict, evidence, exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import Done, Run

from draftproof.audit import speed
from draftproof.audit.runs import AuditRequest
from draftproof.audit.speed import Drafting, Side
from draftproof.engine import step, verification
from draftproof.engine.verification import Verdict

PROMISES = ("lossless", "speed", "whole")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured costs go to a folder of this test."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def prove(run: Run, tiny_model: str) -> Run:
    def invoke(promise: str, *arguments: str) -> Done:
        return run("prove", promise, "--model", tiny_model, "--limit", "1", *arguments)

    return invoke


class Stub:
    """Measurements of a drafter that makes everything `ratio` times as fast."""

    ratio = 1.0

    def __init__(self, *arguments: object) -> None:
        pass

    def prepare(self, requests: Sequence[AuditRequest]) -> None:
        pass

    def run(self, side: Side, requests: Sequence[AuditRequest]) -> speed.Run:
        return speed.Run([[1, 2, 3] for _ in requests], 1.0 if side == "without" else 1.0 / self.ratio)

    def drafting(self) -> Drafting:
        return Drafting(1.8, [2, 5])


def break_verification(patch: pytest.MonkeyPatch) -> None:
    """Rejected first drafts are kept."""

    def verify(works: Sequence[object], output: object) -> list[Verdict]:
        verdicts = verification.verify(works, output)  # type: ignore[arg-type]
        return [
            Verdict(1, 9) if work.drafts and not verdict.accepted else verdict  # type: ignore[attr-defined]
            for work, verdict in zip(works, verdicts, strict=True)
        ]

    patch.setattr(step, "verify", verify)


def test_lossless_prints_the_verdict_first_and_ends_with_0(prove: Run) -> None:
    done = prove("lossless", "--max-tokens", "32")
    assert done.status == 0, done.out
    first, *evidence = done.out.splitlines()
    assert first.startswith("lossless: proven: 64 tokens of 2 requests are identical in 7 ways of running")
    text = "\n".join(evidence)
    for said in (
        "way of running",
        "preemptions in a pool of",
        "prompt tokens from the cache",
        "drafter ngram",
        "self-test: yes",
    ):
        assert said in text
    assert "\x1b" not in done.out


def test_a_broken_engine_ends_with_1_and_the_first_wrong_token(
    prove: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_verification(monkeypatch)
    done = prove("lossless", "--max-tokens", "32", "--json")
    assert done.status == 1
    assert not done.err
    document = json.loads(done.out)
    assert (document["promise"], document["proven"]) == ("lossless", False)
    assert document["verdict"].startswith("lossless: NOT PROVEN: alone: prompt 1")
    difference = document["cases"][0]["differences"][0]
    assert difference["what"] == "token"
    assert difference["expected"]["token_id"] != difference["came"]["token_id"]
    assert difference["expected"]["margin"] >= 0


@pytest.mark.parametrize(("ratio", "status"), [(1.3, 0), (0.8, 1)])
def test_speed_says_how_it_measured(
    prove: Run, monkeypatch: pytest.MonkeyPatch, ratio: float, status: int
) -> None:
    monkeypatch.setattr(speed, "EngineMeasure", Stub)
    monkeypatch.setattr(Stub, "ratio", ratio)
    done = prove("speed", "--batch", "1, 2", "--max-tokens", "4")
    assert done.status == status, done.out
    assert f"{ratio:.3f} to {ratio:.3f}" in done.out
    assert "interleaved pairs (A B B A)" in done.out
    document = json.loads(prove("speed", "--batch", "1,2", "--max-tokens", "4", "--json").out)
    assert document["verdict"] == done.out.splitlines()[0]
    assert [row["batch"] for row in document["rows"]] == [1, 2]
    assert [row["median"] for row in document["rows"]] == pytest.approx([ratio] * 2)


def test_whole_gives_a_row_a_feature(prove: Run) -> None:
    done = prove("whole", "--max-tokens", "12")
    assert done.status == 0, done.out
    assert done.out.startswith("whole: proven: 20 features give the same with the drafter on")
    for name in ("repetition penalty", "JSON schema", "n = 3", "streaming", "prefix hit", "abort"):
        assert any(re.match(rf"  {name} +identical ", line) for line in done.out.splitlines()), name


def test_time_that_is_over_ends_with_1(prove: Run) -> None:
    done = prove("lossless", "--max-tokens", "2", "--budget", "0.000001")
    assert done.status == 1
    assert "time was over before" in done.out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("speed", "--drafter", "none"), "DP463"),
        (("whole", "--drafter", "none"), "DP463"),
        (("speed", "--batch", "1,,4"), "DP462"),
        (("speed", "--batch", "0"), "DP462"),
        (("speed", "--pairs", "0"), "DP462"),
        (("whole", "--max-tokens", "0"), "DP462"),
        (("lossless", "--budget", "0"), "DP462"),
        (("lossless", "--budget", "nan"), "DP462"),
        (("lossless", "--limit", "0"), "DP462"),
        (("lossless", "--prompts", "not-there.jsonl"), "DP460"),
        (("speed", "--draft-mode", "4"), "DP440"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_code(prove: Run, arguments: tuple[str, ...], code: str) -> None:
    done = prove(*arguments)
    assert done.status == 2
    assert f"error[{code}]" in done.err
    assert not done.out


def test_an_empty_file_has_no_prompts(prove: Run, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("", encoding="utf-8")
    done = prove("lossless", "--prompts", str(tmp_path / "none.jsonl"))
    assert (done.status, "error[DP461]" in done.err) == (2, True)


def test_help_lists_the_promises(run: Run) -> None:
    listed = run("prove", "--help").out
    assert all(promise in listed for promise in PROMISES)
    for promise in PROMISES:
        assert "--drafter" in run("prove", promise, "--help").out
