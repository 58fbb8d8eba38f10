"""`draftproof train`, from the command line to a drafter that `generate` can use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import Run

SMALL = (
    *(
        "--preset",
        "tiny",
        "--max-tokens",
        "16",
        "--anchors",
        "4",
        "--eval-prompts",
        "1",
        "--eval-tokens",
        "8",
    ),
    *("--final-tokens", "8", "--device", "cpu"),
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """Options that name prompts, held-out prompts and an output folder."""
    prompts = [{"group": "sums", "prompt": f"What is {n} and {n}?"} for n in range(8)]
    held_out = [{"group": "talk", "prompt": "Say something about the sea."}]
    options: list[str] = []
    for option, rows in (("--prompts", prompts), ("--held-out", held_out)):
        path = tmp_path / f"{option.strip('-')}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        options += [option, str(path)]
    return (*options, "--out", str(tmp_path / "drafter"))


def test_it_trains_a_drafter_that_generate_takes(
    run: Run, tiny_model: str, files: tuple[str, ...], tmp_path: Path
) -> None:
    done = run("train", "--target", tiny_model, *files, *SMALL, "--steps", "3", "--json")
    assert done.status == 0, done.err
    document = json.loads(done.out)
    assert (document["schema"], document["steps"]) == (1, 3)
    assert document["final"]["groups"][0]["group"] == "talk"
    for said in ("about what is left to do", "8 answers of the target", "step 3: decodes", "the best so far"):
        assert said in done.err
    used = run(
        *("generate", "What is 3 and 3?", "--model", tiny_model, "--drafter", document["out"]),
        *("--max-tokens", "12", "--temperature", "0", "--compare", "--draft-mode", "fixed=7"),
    )
    assert used.status == 0, used.err
    again = run("train", "--target", tiny_model, *files, *SMALL, "--steps", "3", "--no-estimate")
    assert again.status == 0
    assert "the drafter of step 3" in " ".join(again.out.split())
    assert "acceptance length" in again.out
    assert "going on after step 3" in again.err
    assert (tmp_path / "drafter.training" / "run.json").exists()


def test_a_drafter_is_trained_on_in_its_own_shape(
    run: Run, tiny_model: str, files: tuple[str, ...], tmp_path: Path
) -> None:
    """The shape that the preset has gives way to that of the drafter; what is asked for expressly does not."""
    shape = ("--layers", "2", "--taps", "1,0", "--block-size", "6", "--mask-token-id", "3")
    first = run("train", "--target", tiny_model, *files, *SMALL, *shape, "--steps", "2", "--no-estimate")
    assert first.status == 0, first.err
    before = str(tmp_path / "drafter")
    more = ("train", "--target", tiny_model, *files[:-1], str(tmp_path / "more"), *SMALL, "--steps", "1")
    done = run(*more, "--no-estimate", "--start-from", before)
    assert done.status == 0, done.err
    there, mine = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("drafter", "more"))
    assert mine == there
    assert mine["dflash_config"] == {"mask_token_id": 3, "target_layer_ids": [1, 0]}
    for wrong, code, said in (
        (
            ("--start-from", before, "--taps", "0,1"),
            "DP511",
            "target_layer_ids (1, 0), not (0, 1)",
        ),
        (("--start-from", "nowhere"), "DP301", "no drafter 'nowhere'"),
        (("--start-from", "default"), "DP548", "no drafter comes with draftproof for"),
    ):
        refused = run(*more, "--no-estimate", *wrong)
        assert refused.status == 2
        assert f"error[{code}]" in refused.err
        assert said in " ".join(refused.err.split())


def test_the_estimate_alone_writes_no_answer(
    run: Run, tiny_model: str, files: tuple[str, ...], tmp_path: Path
) -> None:
    done = run("train", "--target", tiny_model, *files, *SMALL, "--time-limit", "2", "--estimate")
    assert (done.status, done.out) == (0, "")
    for said in ("answers", "features", "training", "about", "2m 00s", "times through the data"):
        assert said in done.err
    assert not (tmp_path / "drafter").exists()
    assert not (tmp_path / "drafter.training" / "responses.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), "DP520", "a run needs an end"),
        (("--steps", "3", "--preset", "vast"), "DP520", "preset must be one of tiny, small, base"),
        (("--steps", "3", "--taps", "1,x"), "DP520", "taps: expected layer numbers with commas"),
        (("--steps", "3", "--taps", "40"), "DP511", "taps are layers 0 to 1 of"),
        (("--steps", "3", "--mask-token-id", "999999"), "DP511", "the mask token must be one of 0 to"),
        (("--steps", "3", "--batch", "3"), "DP520", "multiple of micro_batch"),
        (("--steps", "3", "--prompts", "nowhere.jsonl"), "DP500", "nowhere.jsonl"),
    ],
)
def test_mistakes_end_in_a_coded_line(
    options: tuple[str, ...], code: str, said: str, run: Run, tiny_model: str, files: tuple[str, ...]
) -> None:
    done = run("train", "--target", tiny_model, *files, "--preset", "tiny", "--device", "cpu", *options)
    assert done.status == 2
    assert f"error[{code}]" in done.err
    assert said in done.err
    assert not list(Path(files[-1]).parent.glob("*.training/run.json")), (
        "nothing stands in the way of the right one"
    )


def test_ctrl_c_saves_and_the_same_command_goes_on(
    run: Run, tiny_model: str, files: tuple[str, ...], tmp_path: Path
) -> None:
    options = ("train", "--target", tiny_model, *files, *SMALL, "--no-estimate", "--time-limit", "10")
    process = subprocess.Popen(
        [sys.executable, "-m", "draftproof.cli", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    steps = tmp_path / "drafter.training" / "steps.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if steps.exists() and steps.stat().st_size:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the same command goes on from there" in err
    learnt = len(steps.read_text().splitlines())
    done = run(*options[:-2], "--steps", str(learnt + 2), "--json")
    assert done.status == 0, done.err
    assert f"going on after step {learnt}" in done.err
    assert json.loads(done.out)["steps"] == learnt + 2
