"""Samples: what they hold, and that keeping, killing and computing anew change no bit of them."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import draftproof.train.features as module
from draftproof.errors import DraftproofWarning, ModelError, RequestError
from draftproof.models.executor import TargetModel
from draftproof.models.fused import Precision
from draftproof.models.rows import Segment
from draftproof.train.bars import StageProgress
from draftproof.train.features import Features, Sample, open_features
from draftproof.train.responses import Response
from support.llms import EXECUTORS, Executor, named, tiny_llm

TAPS = (0, 2, 3)
PLENTY = 1 << 30


def some_responses(count: int = 30, seed: int = 0) -> list[Response]:
    chance = random.Random(seed)

    def ids(most: int) -> tuple[int, ...]:
        return tuple(chance.randrange(3, 320) for _ in range(chance.randint(1, most)))

    return [Response(ids(30), ids(60), 0.0, "g", f"{number:04d}") for number in range(count)]


RESPONSES = some_responses()


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few responses a shard, a few a pass."""
    monkeypatch.setattr(module, "SHARD_BYTES", 100_000)
    monkeypatch.setattr(module, "PASS_ROWS", 100)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return tiny_llm("llama", Precision.BFLOAT16).target


def tensors(sample: Sample) -> list[torch.Tensor]:
    found = (sample.token_ids, sample.features, sample.top_ids, sample.top_logprobs)
    return [tensor for tensor in found if tensor is not None]


def same(one: Sample, other: Sample) -> bool:
    mine, theirs = tensors(one), tensors(other)
    return (
        one.response_start == other.response_start
        and len(mine) == len(theirs)
        and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    )


@pytest.mark.parametrize("executor", EXECUTORS, ids=named)
def test_a_sample_is_what_the_target_says_of_the_response_alone(executor: Executor, tmp_path: Path) -> None:
    target = tiny_llm("llama", executor).target
    sources = [
        open_features(target, RESPONSES, TAPS, top_k=5),
        open_features(target, RESPONSES, TAPS, top_k=5, folder=tmp_path, max_bytes=PLENTY),
    ]
    assert [len(source) for source in sources] == [len(RESPONSES)] * 2
    assert sources[1].kept == len(RESPONSES)
    for index in (0, 7, 29):
        response = RESPONSES[index]
        tokens = torch.tensor(response.prompt_ids + response.output_ids)
        out = target.forward([Segment(target.new_sequence(), tokens, 0)], TAPS)
        assert out.features is not None
        start = len(response.prompt_ids)
        expected = out.logits[start - 1 : -1].float().log_softmax(-1)
        for source in sources:
            sample = source[index]
            assert sample.token_ids.dtype == torch.int64
            assert torch.equal(sample.token_ids, tokens)
            assert sample.response_start == start
            assert sample.features.dtype == out.features.dtype
            assert torch.equal(sample.features, out.features)
            assert sample.top_ids is not None
            assert sample.top_logprobs is not None
            assert sample.top_ids.dtype == torch.int32
            assert sample.top_ids.shape == sample.top_logprobs.shape == (len(response.output_ids), 5)
            best = expected.topk(5)
            torch.testing.assert_close(sample.top_logprobs, best.values, atol=1e-5, rtol=0)
            own = expected.gather(1, sample.top_ids.long())
            torch.testing.assert_close(sample.top_logprobs, own, atol=1e-5, rtol=0)
            assert not any(tensor.is_inference() for tensor in tensors(sample))


def test_kept_samples_and_computed_ones_are_the_same_bit_for_bit(target: TargetModel, tmp_path: Path) -> None:
    for top_k in (0, 3):
        some = open_features(
            target, RESPONSES, TAPS, folder=tmp_path / str(top_k), max_bytes=300_000, top_k=top_k
        )
        assert 5 < some.kept < len(RESPONSES) - 5
        computed = open_features(target, RESPONSES, TAPS, top_k=top_k)
        for index, sample in enumerate(some.batch(range(len(RESPONSES)))):
            assert same(sample, computed[index])
            assert (sample.top_ids is None) == (top_k == 0)
        used = sum(path.stat().st_size for path in (tmp_path / str(top_k)).iterdir())
        assert used <= 300_000
        assert same(some[-1], computed[len(RESPONSES) - 1])
        assert computed.kept == 0


def test_memory_is_used_up_to_the_limit(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_features(target, RESPONSES, TAPS, max_bytes=200_000, top_k=2)
    first = source.batch(range(len(RESPONSES)))
    assert 0 < source.kept < len(RESPONSES)
    kept = sum(tensor.nbytes for sample in first[: source.kept] for tensor in tensors(sample))
    assert kept <= 200_000
    assert source[0] is first[0]
    # What is kept asks nothing of the target.
    monkeypatch.setattr(target, "forward", None)
    assert same(source[0], first[0])
    with pytest.raises(TypeError):
        source[len(RESPONSES) - 1]


def test_indices_are_checked_and_may_repeat(target: TargetModel) -> None:
    source = open_features(target, RESPONSES[:3], TAPS)
    assert [len(sample.token_ids) for sample in source.batch([2, 0, 2, -1])] == [
        len(RESPONSES[n].prompt_ids) + len(RESPONSES[n].output_ids) for n in (2, 0, 2, 2)
    ]
    assert source.batch([]) == []
    for index in (3, -4):
        with pytest.raises(IndexError, match="from 0 to 2"):
            source[index]
    assert len(open_features(target, [], TAPS)) == 0


def opened(target: TargetModel, folder: Path, **other: object) -> tuple[Features, int]:
    """The source, and how many responses had to be computed for the folder."""
    told: list[StageProgress] = []
    options = {"folder": folder, "max_bytes": PLENTY, "top_k": 2, "progress": told.append, **other}
    source = open_features(target, RESPONSES, TAPS, **options)  # type: ignore[arg-type]
    return source, told[-1].done - told[-1].found if told else 0


def test_a_whole_folder_is_used_again(target: TargetModel, tmp_path: Path) -> None:
    first, count = opened(target, tmp_path)
    assert count == len(RESPONSES)
    assert len(list(tmp_path.iterdir())) > 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, count = opened(target, tmp_path)
        assert count == 0
        reader, count = opened(target, tmp_path, fill=False)
    assert (again.kept, reader.kept) == (len(RESPONSES), len(RESPONSES))
    assert all(same(first[n], again[n]) and same(first[n], reader[n]) for n in range(len(RESPONSES)))


def test_a_reader_writes_nothing(target: TargetModel, tmp_path: Path) -> None:
    reader, _ = opened(target, tmp_path / "none", fill=False)
    assert reader.kept == 0
    assert not (tmp_path / "none").exists()
    assert same(reader[3], open_features(target, RESPONSES, TAPS, top_k=2)[3])


def test_a_stopped_run_goes_on(target: TargetModel, tmp_path: Path) -> None:
    calls = [0]

    def stop() -> bool:
        calls[0] += 1
        return calls[0] > 12

    part, _ = opened(target, tmp_path, stop=stop)
    assert 0 < part.kept < len(RESPONSES)
    computed = open_features(target, RESPONSES, TAPS, top_k=2)
    assert all(same(part[n], computed[n]) for n in range(len(RESPONSES)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest, count = opened(target, tmp_path)
    assert count == len(RESPONSES) - part.kept
    assert all(same(rest[n], computed[n]) for n in range(len(RESPONSES)))


@pytest.mark.parametrize("fault", ["cut", "empty", "gone", "half", "other"])
def test_a_damaged_shard_is_computed_anew(target: TargetModel, tmp_path: Path, fault: str) -> None:
    before, _ = opened(target, tmp_path)
    shards = sorted(tmp_path.iterdir())
    victim = shards[1]
    content = victim.read_bytes()
    if fault == "cut":
        victim.write_bytes(content[: len(content) // 2])
    elif fault == "empty":
        victim.write_bytes(b"")
    elif fault == "gone":
        victim.unlink()
    elif fault == "half":
        victim.rename(victim.with_suffix(".half"))
    else:
        victim.write_bytes(shards[2].read_bytes())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after, count = opened(target, tmp_path)
    assert bool(caught) == (fault in ("cut", "empty", "other"))
    assert 0 < count < len(RESPONSES) // 2
    assert sorted(tmp_path.iterdir()) == shards
    assert victim.read_bytes() == content
    assert all(same(before[n], after[n]) for n in range(len(RESPONSES)))


RUN = """
import sys, time
from pathlib import Path
import train.test_features as here
here.module.SHARD_BYTES, here.module.PASS_ROWS = 100_000, 100
def slowly(progress):
    print(progress.done, flush=True)
def wait():
    time.sleep(0.05)
    return False
target = here.tiny_llm("llama", here.Precision.BFLOAT16).target
here.open_features(
    target, here.RESPONSES, here.TAPS, folder=Path(sys.argv[1]), max_bytes=here.PLENTY, top_k=2, progress=slowly, stop=wait
)
"""


def test_a_killed_process_goes_on(target: TargetModel, tmp_path: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{RUN}"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while len(list(tmp_path.glob("*.safetensors"))) < 2:
        assert process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source, count = opened(target, tmp_path)
    assert 0 < count < len(RESPONSES)
    computed = open_features(target, RESPONSES, TAPS, top_k=2)
    assert all(same(source[n], computed[n]) for n in range(len(RESPONSES)))


def test_a_cache_of_something_else_is_renewed_and_said_so(tmp_path: Path) -> None:
    target = tiny_llm("llama", Precision.BFLOAT16).target
    opened(target, tmp_path)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    others: list[tuple[TargetModel, list[Response], tuple[int, ...], int]] = [
        (tiny_llm("llama", Precision.INT8).target, RESPONSES, TAPS, 2),
        (tiny_llm("qwen3", Precision.INT8).target, RESPONSES, TAPS, 2),
        (target, RESPONSES, (2, 0, 3), 2),
        (target, RESPONSES, TAPS, 1),
        (target, some_responses(seed=1), TAPS, 1),
    ]
    for other, responses, taps, top_k in others:
        with pytest.warns(DraftproofWarning, match="computed anew"):
            source = open_features(other, responses, taps, folder=tmp_path, max_bytes=PLENTY, top_k=top_k)
        computed = open_features(other, responses, taps, top_k=top_k)
        assert all(same(source[n], computed[n]) for n in range(len(responses)))
    assert (tmp_path / "notes.txt").exists()


def test_more_responses_leave_the_first_shards_as_they_are(target: TargetModel, tmp_path: Path) -> None:
    open_features(target, RESPONSES[:20], TAPS, folder=tmp_path, max_bytes=PLENTY)
    told: list[StageProgress] = []
    with pytest.warns(DraftproofWarning):  # the last one was not full
        open_features(target, RESPONSES, TAPS, folder=tmp_path, max_bytes=PLENTY, progress=told.append)
    assert 10 <= told[-1].found < 20
    altered = [replace(RESPONSES[0], output_ids=(9,)), *RESPONSES[1:]]
    with pytest.warns(DraftproofWarning):
        source = open_features(target, altered, TAPS, folder=tmp_path, max_bytes=PLENTY)
    assert source[0].token_ids[-1] == 9


def test_a_full_disk_leaves_the_rest_to_be_computed(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = module.save_file, [0]

    def full(values: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        calls[0] += 1
        if calls[0] > 2:
            Path(path).write_bytes(b"half")
            raise module.SafetensorError("Error: I/O error: No space left on device (os error 28)")
        write(values, path, metadata=metadata)

    monkeypatch.setattr(module, "save_file", full)
    with pytest.warns(DraftproofWarning, match="no room on disk"):
        source, _ = opened(target, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert 0 < source.kept < len(RESPONSES)
    computed = open_features(target, RESPONSES, TAPS, top_k=2)
    assert all(same(source[n], computed[n]) for n in range(len(RESPONSES)))


def test_places_and_taps_that_cannot_be_used(target: TargetModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RequestError, match="cannot keep features") as caught:
        opened(target, tmp_path / "file")
    assert caught.value.code == "DP507"
    with pytest.raises(ModelError) as wrong:
        open_features(target, RESPONSES, (0, 99))
    assert wrong.value.code == "DP257"
