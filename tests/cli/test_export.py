"""`draftproof export` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run

from draftproof.models.drafters import write_random_checkpoint


@pytest.fixture
def pair(tmp_path: Path, tiny_model: str) -> tuple[Path, str]:
    """A drafter of the small model, and that model."""
    folder = write_random_checkpoint(
        tmp_path / "drafter",
        hidden_size=64,
        vocab_size=260,
        num_target_layers=2,
        target_layer_ids=(0,),
        block_size=5,
    )
    return folder, tiny_model


def test_both_formats_tell_where_they_went_and_how_they_are_used(
    run: Run, pair: tuple[Path, str], tmp_path: Path
) -> None:
    folder, target = pair
    out = tmp_path / "exported"
    done = run("export", str(folder), "--to", "speculators", "--out", str(out), "--target", target)
    assert (done.status, done.err) == (0, "")
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    assert "taps 0 are 1 there" in done.out
    assert f"vllm serve {target} --speculative-config" in done.out
    assert '"num_speculative_tokens": 4' in done.out

    file = tmp_path / "drafter.gguf"
    done = run(
        "export", str(folder), "--to", "gguf", "--out", str(file), "--target", target, "--dtype", "f32"
    )
    assert (done.status, done.err) == (0, "")
    assert file.read_bytes()[:4] == b"GGUF"
    assert f"-md {file} --spec-type draft-dflash --spec-draft-n-max 4" in done.out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--to", "onnx"], "DP530"),
        (["--to", "gguf"], "DP532"),
        (["--to", "speculators", "--dtype", "bf16"], "DP535"),
    ],
)
def test_a_refusal_is_one_coded_line(
    run: Run, pair: tuple[Path, str], tmp_path: Path, arguments: list[str], code: str
) -> None:
    done = run("export", str(pair[0]), "--out", str(tmp_path / "out"), *arguments)
    assert done.status == 2
    assert f"error[{code}]" in done.err
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_replaced_only_when_told(run: Run, pair: tuple[Path, str], tmp_path: Path) -> None:
    command = ("export", str(pair[0]), "--to", "speculators", "--out", str(tmp_path / "out"))
    assert [run(*command).status, run(*command).status, run(*command, "--overwrite").status] == [0, 2, 0]
