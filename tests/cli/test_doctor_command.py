"""`draftproof doctor`: verdict first, evidence, exit status; and ``--drafter default`` on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Done, Run

from draftproof.engine import loading
from draftproof.models.drafters import write_random_checkpoint
from draftproof.models.drafters.shipped import ShippedDrafter, default_drafter
from support.trained_pair import MASK, prompts, trained_pair


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured costs go to a folder of this test."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def asked(tmp_path: Path) -> str:
    """A file with prompts of the trained pair's language."""
    file = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": text}) for text in prompts()[::5]]
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


@pytest.fixture
def doctor(run: Run, asked: str) -> Run:
    def invoke(drafter: str, *arguments: str) -> Done:
        target = str(trained_pair().target)
        options = ("--target", target, "--drafter", drafter, "--prompts", asked, "--max-tokens", "20")
        return run("doctor", *options, *arguments)

    return invoke


@pytest.fixture
def untrained(tiny_model: str, tmp_path: Path) -> str:
    """A drafter with random weights for the tiny model."""
    config = json.loads((Path(tiny_model) / "config.json").read_text(encoding="utf-8"))
    folder = write_random_checkpoint(
        tmp_path / "untrained",
        hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"],
        num_target_layers=config["num_hidden_layers"],
        target_layer_ids=(0, 1),
    )
    return str(folder)


def test_a_healthy_pair_ends_with_0(doctor: Run) -> None:
    done = doctor(str(trained_pair().drafter))
    assert done.status == 0, done.out
    assert done.out.startswith("doctor: healthy: ")
    assert "as it stands" in done.out
    assert "\x1b" not in done.out


def test_a_fault_ends_with_1_and_what_to_do(doctor: Run, tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(trained_pair().drafter, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["dflash_config"]["mask_token_id"] = 3
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    done = doctor(str(folder), "--only", "mask", "--only", "taps")
    assert done.status == 1
    assert done.out.startswith("doctor: FOUND: its mask token is not the one it was trained with")
    assert f"set dflash_config.mask_token_id to {MASK}" in done.out
    assert "embedding scale" not in done.out
    document = json.loads(doctor(str(folder), "--only", "mask", "--json").out)
    assert document["verdict"].startswith("doctor: FOUND: its mask token")
    assert document["healthy"] is False
    assert document["findings"][0]["kind"] == "mask"


def test_prompts_without_the_template_are_named(doctor: Run) -> None:
    done = doctor(str(trained_pair().drafter), "--raw", "--only", "template")
    assert done.status == 1
    assert "prompts with chat template" in done.out


def test_an_untrained_drafter_ends_with_1(run: Run, tiny_model: str, untrained: str) -> None:
    done = run("doctor", "--target", tiny_model, "--drafter", untrained, "--limit", "6", "--max-tokens", "12")
    assert done.status == 1, done.err
    assert done.out.startswith("doctor: LOW: ")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--drafter", "ngram"), "DP540"),
        (("--drafter", "none"), "DP540"),
        (("--limit", "0"), "DP542"),
        (("--max-tokens", "0"), "DP542"),
        (("--only", "tap"), "DP542"),
        (("--limit", "2"), "DP541"),
        (("--prompts", "not-there.jsonl"), "DP460"),
        (("--drafter", "./not-there"), "DP201"),
        (("--drafter", "default"), "DP548"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_code(
    run: Run, tiny_model: str, untrained: str, arguments: tuple[str, ...], code: str
) -> None:
    given = arguments if "--drafter" in arguments else ("--drafter", untrained, *arguments)
    done = run("doctor", "--target", tiny_model, *given)
    assert done.status == 2
    assert f"error[{code}]" in done.err
    assert not done.out


def test_the_default_drafter_is_taken_by_name(
    run: Run, tiny_model: str, untrained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (ShippedDrafter(tiny_model.lower(), "untrained"),)
    root = Path(untrained).parent
    monkeypatch.setattr(loading, "default_drafter", lambda target: default_drafter(target, table, root))
    done = run(
        *("generate", "Hello", "--model", tiny_model, "--drafter", "default"),
        *("--draft-mode", "fixed=3", "--max-tokens", "6", "--temperature", "0", "--json"),
    )
    assert done.status == 0, done.err
    document = json.loads(done.out)
    assert document["drafter"] == "dflash"
    assert document["stats"]["drafted_tokens"] > 0
