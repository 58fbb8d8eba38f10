"""Machine code is kept between processes, and renewed when any file of the folder changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from draftproof.verify.kernels import compiling

CALLEE = """
from compiling import compiled

@compiled()
def callee(x):
    return x + {number}
"""
CALLER = """
from callee import callee
from compiling import compiled

@compiled()
def caller(x):
    return callee(x) * 10
"""
CALL = """
from caller import caller
print(caller(1), sum(caller.stats.cache_hits.values()))
"""
CALL_WITHOUT_A_PLACE = "import compiling; compiling._Format._locator_classes = ()\n" + CALL


def folder_with(place: Path, number: int) -> Path:
    """A small folder of compiled functions: one calls another, which lies in a file of its own."""
    place.mkdir(exist_ok=True)
    own = Path(compiling.__file__).read_text() + "\n\ncompiled = compiler(Path(__file__).parent)\n"
    (place / "compiling.py").write_text(own)
    (place / "callee.py").write_text(CALLEE.format(number=number))
    (place / "caller.py").write_text(CALLER)
    return place


def call(place: Path, program: str = CALL) -> tuple[int, int]:
    """What a new process gets, and how often it found machine code."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result, hits = done.stdout.split()
    return int(result), int(hits)


def test_renewed_when_a_file_changes_that_is_only_called_into(tmp_path: Path) -> None:
    place = folder_with(tmp_path / "folder", 1)
    assert call(place) == (20, 0)
    assert call(place) == (20, 1)
    folder_with(place, 2)
    assert call(place) == (30, 0)
    assert call(place) == (30, 1)


def test_works_where_nothing_can_be_kept(tmp_path: Path) -> None:
    place = folder_with(tmp_path / "folder", 1)
    assert call(place, CALL_WITHOUT_A_PLACE) == (20, 0)
    assert not list(place.rglob("*.nbc"))
    assert call(place, CALL_WITHOUT_A_PLACE) == (20, 0)


def test_the_stamp_tells_every_difference(tmp_path: Path) -> None:
    place = folder_with(tmp_path / "folder", 1)
    seen = {compiling.stamp_of(place)}
    assert compiling.stamp_of(place) in seen
    (place / "notes.txt").write_text("not code")
    assert compiling.stamp_of(place) in seen
    for change in (
        lambda: (place / "callee.py").write_text(CALLEE.format(number=2)),
        lambda: (place / "more.py").write_text(""),
        lambda: (place / "more.py").rename(place / "other.py"),
        lambda: (place / "caller.py").unlink(),
    ):
        change()
        stamp = compiling.stamp_of(place)
        assert stamp not in seen
        seen.add(stamp)


def test_features_are_those_of_this_machine() -> None:
    features = compiling.target_features()
    assert features
    assert all(not word.startswith(("+", "-")) for word in features)


def test_two_processes_that_compile_at_once_do_not_cross(tmp_path: Path) -> None:
    """Each looked before the other wrote; numba's own index would give both pieces of code one name."""
    one, other = (compiling.CodeFiles(str(tmp_path), "f", "0" * 64) for _ in range(2))
    assert one.load("int8") is None
    assert other.load("int4") is None
    one.save("int8", "code for int8")
    other.save("int4", "code for int4")
    for files in (one, other):
        assert files.load("int8") == "code for int8"
        assert files.load("int4") == "code for int4"


def test_pieces_of_other_sources_are_removed_and_never_loaded(tmp_path: Path) -> None:
    old, new = (compiling.CodeFiles(str(tmp_path), "f", digit * 64) for digit in "01")
    neighbour = compiling.CodeFiles(str(tmp_path), "g", "0" * 64)
    old.save("int8", "old")
    neighbour.save("int8", "another function's")
    assert new.load("int8") is None
    new.save("int8", "new")
    assert old.load("int8") is None
    assert new.load("int8") == "new"
    assert neighbour.load("int8") == "another function's"
