"""Tables, plot and memory."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from draftproof import LLM
from draftproof.bench import BenchOptions, BenchPrompt, Results, run_bench
from draftproof.bench.memory import forget_peak, peak_mib, resident_mib
from draftproof.bench.plot import write_plot
from draftproof.bench.tables import drafting_table, speed_table, summary_line
from draftproof.errors import RequestError

PROMPTS = [BenchPrompt("a", "one two"), BenchPrompt("b", "three")]


@pytest.fixture(scope="module")
def results(llm: LLM) -> Results:
    options = BenchOptions((1, 2), ("off", "fixed=3"), (0.0, 0.8), max_tokens=6, rounds=2, ignore_eos=True)
    return run_bench(llm, PROMPTS, options, resident_before_mib=100.0, resident_loaded_mib=250.0)


def shown(results: Results) -> str:
    out = StringIO()
    console = Console(file=out, width=200)
    console.print(summary_line(results), soft_wrap=True)
    console.print(speed_table(results))
    console.print(drafting_table(results))
    return out.getvalue()


def test_tables_have_a_row_a_mode(results: Results) -> None:
    text = shown(results)
    assert text.count("fixed=3") == 2 * len(results.cells)
    assert text.count("same") == len(results.cells)
    assert "250 MiB with models" in text
    assert "(50%)" in text  # two rounds are no 95%
    assert "rounds)" not in text


def test_tables_say_what_is_missing_or_wrong(results: Results) -> None:
    cell = results.cells[0]
    off, fixed = cell.modes
    empty = replace(
        fixed,
        tokens_per_second=None,
        speed_over_off=None,
        shares=None,
        first_token_ms=None,
        same_tokens=False,
        peak_mib=None,
    )
    text = shown(replace(results, cells=[replace(cell, complete=False, rounds=1, modes=[off, empty])]))
    assert "DIFFER" in text
    assert "fixed=3 (1 rounds)" in text
    assert "1 cell not complete" in text


def test_the_plot_is_a_png(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "speed.png"
    write_plot(path, results)
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    assert (width, height) == (1500, 720)
    write_plot(path, replace(results, cells=[]))
    assert path.read_bytes() != content
    with pytest.raises(RequestError) as caught:
        write_plot(tmp_path / "none" / "x.png", results)
    assert caught.value.code == "DP476"


def test_a_plot_needs_no_screen_and_leaves_no_backend_behind(results: Results, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    before = matplotlib.rcParams._get_backend_or_none()
    write_plot(tmp_path / "speed.png", results)
    assert matplotlib.rcParams._get_backend_or_none() == before


def test_without_matplotlib_the_plot_is_refused(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.bench.plot.find_spec", lambda name: None)
    with pytest.raises(RequestError) as caught:
        write_plot(tmp_path / "speed.png", results)
    assert caught.value.code == "DP475"


def test_the_peak_can_be_forgotten() -> None:
    if resident_mib() is None:
        pytest.skip("the system does not say")
    held = bytearray(200 << 20)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    high, now = peak_mib(), resident_mib()
    assert high is not None
    assert now is not None
    assert high >= now - 1
    del held
    forget_peak()
    after = peak_mib()
    assert after is not None
    if after >= high:
        pytest.skip("the system does not let peaks be forgotten")
    assert high - after > 150


def test_no_file_system_that_says_so_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.bench.memory._STATUS", Path("/nowhere/status"))
    monkeypatch.setattr("draftproof.bench.memory._CLEAR", Path("/nowhere/clear"))
    assert resident_mib() is None
    forget_peak()
    peak = peak_mib()
    assert peak is None or peak > 10
