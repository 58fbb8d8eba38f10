"""The pages agree with the code, and tracked files name no machine and no registry."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Written in halves, so that this file does not hold what it looks for.
FORBIDDEN = [
    re.compile(first + second)
    for first, second in (
        (r"/wo", r"rk/(?!flow)"),
        (r"/ro", r"ot/"),
        (r"/home/", r"[a-z]+/"),
        (r"pypi\.", r"org"),
        (r"pythonhosted\.", r"org"),
        (r"download\.pytorch\.", r"org"),
        (r"debian\.", r"org"),
    )
]


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name]


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "docs/refresh.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken


def test_files_named_in_the_pages_exist() -> None:
    """A path in backticks is relative to the checkout, to the package, or to its models."""
    source = ROOT / "src" / "draftproof"
    gone = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8").partition("<!-- files:")[0]
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text):
            if not any((base / name).is_file() for base in (ROOT, source, source / "models")):
                gone.append(f"{page.name}: {name}")
    assert not gone


@pytest.mark.smollm2
def test_the_examples_of_the_readme_run() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_no_machine_path_and_no_registry_host() -> None:
    found = []
    for path in tracked():
        if not path.is_file() or path.suffix in (".safetensors", ".npz", ".pt", ".gguf", ".png"):
            continue
        text = path.read_text(encoding="utf-8")
        found += [
            f"{path.relative_to(ROOT)}: {match[0]}" for rule in FORBIDDEN for match in rule.finditer(text)
        ]
    assert not found


def test_every_source_file_says_what_it_is() -> None:
    import ast

    silent = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "src").rglob("*.py")
        if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert not silent


@pytest.mark.parametrize("pattern", FORBIDDEN, ids=lambda pattern: pattern.pattern)
def test_the_rules_find_what_they_are_for(pattern: re.Pattern[str]) -> None:
    samples = [
        "/wo" + "rk/main",
        "/ro" + "ot/x",
        "/home/" + "me/x",
        "pypi." + "org",
        "files.pythonhosted." + "org",
    ]
    samples += ["download.pytorch." + "org/whl", "deb.debian." + "org"]
    assert sum(pattern.search(sample) is not None for sample in samples) == 1
