"""`draftproof bench` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Done, Run

from draftproof.bench import suite

QUICK = ("--batch", "1,2", "--rounds", "1", "--max-tokens", "4", "--temperature", "0")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured costs go to a folder of this test."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bench(run: Run, tiny_model: str) -> Run:
    def invoke(*arguments: str) -> Done:
        return run("bench", tiny_model, *arguments)

    return invoke


def test_it_prints_two_tables_and_keeps_the_results(bench: Run, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    done = bench(*QUICK, "--drafter", "ngram", "--modes", "off,fixed=2", "--json", str(path))
    assert done.status == 0, done.err
    assert "drafter ngram, 1 rounds of 4 tokens" in done.out
    for said in ("over off", "kept at 1, 2, ...", "draft/target/verify/commit/other", "fixed=2", "mixed"):
        assert said in done.out, said
    assert "\x1b" not in done.out
    document = json.loads(path.read_text())
    assert [cell["batch"] for cell in document["cells"]] == [1, 2]
    assert document["setup"]["modes"] == ["off", "fixed=2"]
    assert document["resident_before_mib"] is None or document["resident_before_mib"] > 0


def test_without_a_drafter_only_off_is_measured(bench: Run) -> None:
    done = bench(
        "--batch", "1", "--rounds", "1", "--max-tokens", "4", "--drafter", "none", "--groups", "code"
    )
    assert done.status == 0, done.err
    assert "drafter none" in done.out
    assert "auto" not in done.out.replace("(auto:", "")
    assert "0.8" in done.out  # greedy and sampled by default


def test_the_plot_is_drawn(bench: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "speed.png"
    done = bench(*QUICK, "--drafter", "none", "--plot", str(picture))
    assert done.status == 0, done.err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_shows_and_keeps_what_was_measured(
    bench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    measure = suite.measure_cell

    def interrupted(run: object, *arguments: object) -> None:
        if run.key.batch == 2:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        measure(run, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(suite, "measure_cell", interrupted)
    done = bench(*QUICK, "--drafter", "none", "--json", str(path))
    assert done.status == 130
    assert "mixed" in done.out
    assert [cell["batch"] for cell in json.loads(path.read_text())["cells"]] == [1]
    monkeypatch.setattr(suite, "measure_cell", measure)
    assert bench(*QUICK, "--drafter", "none", "--json", str(path)).status == 0
    assert [cell["batch"] for cell in json.loads(path.read_text())["cells"]] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--batch", "1;4"), "DP472"),
        (("--batch", "0"), "DP472"),
        (("--temperature", "hot"), "DP472"),
        (("--rounds", "0"), "DP472"),
        (("--max-tokens", "1"), "DP472"),
        (("--modes", "off,sometimes"), "DP440"),
        (("--modes", ","), "DP472"),
        (("--groups", "poems"), "DP471"),
        (("--prompts", "not-there.jsonl"), "DP470"),
        (("--json", "not-there/results.json"), "DP476"),
        (("--drafter", "none", "--modes", "auto"), "DP473"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_code(bench: Run, arguments: tuple[str, ...], code: str) -> None:
    done = bench("--drafter", "ngram", *arguments)
    assert done.status == 2
    assert f"error[{code}]" in done.err
    assert not done.out


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    bench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.bench.plot.find_spec", lambda name: None)
    monkeypatch.setattr(suite, "measure_cell", None)
    done = bench("--plot", str(tmp_path / "speed.png"))
    assert (done.status, "error[DP475]" in done.err) == (2, True)
