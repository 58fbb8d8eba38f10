"""The command as a process: what it loads, how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run


@pytest.mark.parametrize(
    "arguments", [["--help"], ["explain"], ["explain", "DP204"], ["models"], ["--version"]]
)
def test_light_commands_load_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from draftproof.cli import main\n"
        f"sys.argv = ['draftproof', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'numpy', 'numba', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_names_the_commands(run_process: Run) -> None:
    done = run_process("--help")
    assert done.status == 0
    for name in ("generate", "models", "explain"):
        assert f"\n  {name} " in done.out
    assert run_process("--version").out.startswith("draftproof ")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["generate"], ["explain", "DP999"], ["generate", "a", "--top-k", "x"]]
)
def test_a_wrong_command_line(run_process: Run, arguments: list[str]) -> None:
    done = run_process(*arguments)
    assert done.status == 2
    assert done.err
    assert "Traceback" not in done.err


def test_an_error_is_one_coded_line_and_a_hint(run_process: Run) -> None:
    done = run_process("generate", "Hello", "--model", "smolm2-135")
    assert done.status == 2
    assert not done.out
    first, second = done.err.strip().splitlines()
    assert first.startswith("error[DP200] unknown model 'smolm2-135'")
    assert "Did you mean smollm2-135m?" in first
    assert second == "hint: draftproof explain DP200"


@pytest.mark.parametrize(("arguments", "environment"), [(["--debug"], {}), ([], {"DRAFTPROOF_DEBUG": "1"})])
def test_the_traceback_is_there_for_the_asking(
    run_process: Run, arguments: list[str], environment: dict[str, str]
) -> None:
    done = run_process("generate", "Hello", "--model", "zebra", *arguments, **environment)
    assert done.status == 1
    assert "Traceback" in done.err
    assert "ModelError: unknown model 'zebra'" in done.err


def test_the_entry_point_is_installed() -> None:
    from importlib.metadata import entry_points

    (entry,) = [point for point in entry_points(group="console_scripts") if point.name == "draftproof"]
    assert entry.value == "draftproof.cli:main"


def test_models_lists_what_is_known(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    done = run("models")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("smollm2-135m\n")
    assert "not fetched yet, a download of 92.9 MB" in done.out
    (model,) = json.loads(run("models", "--json").out)
    assert model["name"] == "smollm2-135m"
    assert (model["cached"], model["verified"], model["bytes"]) == (False, False, 0)
    assert model["licence"] == "Apache-2.0"
    assert model["path"].startswith(str(tmp_path))
    assert run("models", "--verify").status == 0


def test_models_reports_a_damaged_copy(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.models.registry import find_known
    from draftproof.models.registry.cache import model_path, write_manifest

    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    entry = find_known("smollm2-135m")
    assert entry is not None
    folder = model_path(entry)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    write_manifest(folder, entry)
    assert "checksums right" in run("models", "--verify").out
    (folder / "model.safetensors").write_bytes(b"weighty")
    done = run("models", "--verify")
    assert done.status == 2
    assert "error[DP212]" in done.err
    assert "its checksum differs" in done.err
    assert "freed" in run("models", "--remove", "smollm2-135m").err
    assert not folder.exists()


@pytest.mark.parametrize("option", ["--fetch", "--remove"])
def test_models_knows_only_known_names(run: Run, option: str) -> None:
    done = run("models", option, "owner/model")
    assert done.status == 2
    assert "error[DP200]" in done.err
