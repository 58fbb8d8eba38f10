"""The gate in front of integer precisions: what it measures, what it lets through, what it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from draftproof.models.executor import FusedSource, find_source, load_target
from draftproof.models.fused import FusedTarget, Precision
from draftproof.models.quality import Answer, Quality, answers_of, compare, logits_of
from draftproof.models.quality_prompts import PROMPTS
from draftproof.models.registry.cache import MANIFEST
from draftproof.models.registry.known import KNOWN_MODELS
from draftproof.models.rows import Segment
from draftproof.models.target import TargetOptions
from draftproof.models.verdicts import (
    fingerprint,
    first_good,
    known_model,
    load_qualities,
    measure_until_good,
    precision_for,
    save_qualities,
)
from support.fused import products_of_bfloat16
from support.tiny import make_model, random_tokens
from support.tiny_tokenizers import tiny_tokenizer

GOOD, BAD = Quality(0.98, 0.004, 1000), Quality(0.96, 0.004, 1000)
NO_END: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tokenizer = tiny_tokenizer("byte_level")
    make_model("llama", torch.bfloat16, vocab=len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def source(folder: Path) -> FusedSource:
    found = find_source(folder, "tiny", TargetOptions(device="cpu"))
    assert isinstance(found, FusedSource)
    return found


def target(source: FusedSource, precision: Precision) -> FusedTarget:
    return FusedTarget(source.spec, precision, "tiny")


def prompts() -> list[list[int]]:
    return [random_tokens(5 + n, seed=n).tolist() for n in range(4)]


def test_answers_are_greedy_and_end(source: FusedSource) -> None:
    reference = target(source, Precision.BFLOAT16)
    answers = answers_of(reference, prompts(), NO_END, limit=12)
    for answer, prompt in zip(answers, prompts(), strict=True):
        assert answer.prompt == tuple(prompt)
        assert len(answer.tokens) == 12
        assert logits_of(reference, answer).argmax(-1).tolist() == list(answer.tokens)
    ends = frozenset([answers[0].tokens[3]])
    shorter = answers_of(reference, prompts(), ends, limit=12)
    for whole, cut in zip(answers, shorter, strict=True):
        places = [n for n, token in enumerate(whole.tokens) if token in ends]
        assert cut.tokens == whole.tokens[: places[0] + 1 if places else 12]


def test_a_model_agrees_with_itself(source: FusedSource) -> None:
    reference = target(source, Precision.BFLOAT16)
    answers = answers_of(reference, prompts(), NO_END, limit=12)
    found = compare(reference, reference, answers)
    assert (found.agreement, found.tokens) == (1.0, 48)
    assert abs(found.rise) < 1e-6
    assert found.good


def test_fewer_bits_change_more(source: FusedSource) -> None:
    """On weights without any structure; the figures are those of the definition, row by row."""
    reference = target(source, Precision.BFLOAT16)
    answers = answers_of(reference, prompts(), NO_END, limit=24)
    eight, four = (compare(reference, target(source, p), answers) for p in (Precision.INT8, Precision.INT4))
    assert 0 < eight.rise < four.rise
    assert four.agreement <= eight.agreement <= 1
    other = target(source, Precision.INT4)
    rows = [(logits_of(reference, a).double(), logits_of(other, a).double()) for a in answers]
    mine, theirs = (torch.cat(each).log_softmax(-1) for each in zip(*rows, strict=True))
    entropy = -(mine.exp() * mine).sum()
    crossed = -(mine.exp() * theirs).sum()
    assert four.rise == pytest.approx(float(crossed / entropy - 1), rel=1e-3)
    assert four.agreement == float((mine.argmax(-1) == theirs.argmax(-1)).double().mean())


def test_a_broken_precision_is_caught(source: FusedSource) -> None:
    reference = target(source, Precision.BFLOAT16)
    answers = answers_of(reference, prompts(), NO_END, limit=12)

    class Blurred(FusedTarget):
        def forward(self, segments: list[Segment], taps: tuple[int, ...] = ()):  # type: ignore[no-untyped-def,override]
            output = super().forward(segments, taps)
            output.logits[::5] = output.logits[::5].roll(1, -1)
            return output

    assert not compare(reference, Blurred(source.spec, Precision.BFLOAT16, "tiny"), answers).good


def test_nothing_to_compare_is_no_verdict(source: FusedSource) -> None:
    reference = target(source, Precision.BFLOAT16)
    with pytest.raises(ValueError, match="nothing"):
        compare(reference, reference, [])
    with pytest.raises(ValueError, match="nothing"):
        compare(reference, reference, [Answer((3,), ())][:0])


@pytest.mark.parametrize(
    ("quality", "good"),
    [
        (Quality(0.97, 0.005, 1000), True),
        (Quality(0.9699, 0.0, 1000), False),
        (Quality(1.0, 0.0051, 1000), False),
        (Quality(1.0, float("nan"), 1000), False),
        (Quality(0.0, float("inf"), 0), False),
    ],
)
def test_bounds(quality: Quality, good: bool) -> None:
    assert quality.good is good


def test_the_fastest_good_one() -> None:
    order = [Precision.INT4, Precision.INT8]
    assert first_good(order, {Precision.INT4: GOOD}) is Precision.INT4
    assert first_good(order, {Precision.INT4: BAD}) is None  # int8 is unknown
    assert first_good(order, {Precision.INT8: GOOD}) is None  # int4 is
    assert first_good(order, {Precision.INT4: BAD, Precision.INT8: GOOD}) is Precision.INT8
    assert first_good(order, {Precision.INT4: BAD, Precision.INT8: BAD}) is None
    assert first_good([Precision.INT8], {Precision.INT8: GOOD}) is Precision.INT8


def test_only_what_is_missing_is_measured() -> None:
    asked: list[Precision] = []

    def measure(precision: Precision) -> Quality:
        asked.append(precision)
        return GOOD

    order = [Precision.INT4, Precision.INT8]
    measure_until_good(order, {Precision.INT4: BAD}, measure)
    assert asked == [Precision.INT8]
    measure_until_good(order, qualities := {}, measure)
    assert list(qualities) == [Precision.INT4]


def test_what_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "quality" / "one.json"
    assert load_qualities(file) == {}
    save_qualities(file, {Precision.INT4: BAD, Precision.INT8: GOOD})
    assert load_qualities(file) == {Precision.INT4: BAD, Precision.INT8: GOOD}
    assert [each.name for each in file.parent.iterdir()] == ["one.json"]
    for damaged in ("", "[]", '{"int4": 1}', '{"int3": {}}', '{"int4": {"agreement": 1}}'):
        file.write_text(damaged)
        assert load_qualities(file) == {}


def test_a_folder_that_cannot_be_written_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "quality").write_text("a file in the way")
    save_qualities(tmp_path / "quality" / "one.json", {Precision.INT4: GOOD})


def test_checkpoints_are_told_apart(tmp_path: Path) -> None:
    prints = []
    for seed in (0, 1):
        make_model("llama", torch.bfloat16, seed).save_pretrained(tmp_path / str(seed))
        prints += [fingerprint(tmp_path / str(seed))] * 2
    config = json.loads((tmp_path / "0" / "config.json").read_text())
    (tmp_path / "0" / "config.json").write_text(json.dumps({**config, "rope_theta": 5.0}))
    prints.append(fingerprint(tmp_path / "0"))
    assert len(set(prints)) == 3


def test_a_known_model_brings_its_verdict(tmp_path: Path) -> None:
    entry = KNOWN_MODELS[0]
    assert known_model(tmp_path) is None
    manifest = {
        "name": entry.name,
        "source_sha256": entry.source.sha256,
        "conversion": entry.conversion,
        "files": {},
    }
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert known_model(tmp_path) is entry
    assert entry.auto_dtype in ("int4", "int8", "bfloat16")
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "conversion": 99}))
    assert known_model(tmp_path) is None  # measured for other weights
    (tmp_path / MANIFEST).write_text("{")
    assert known_model(tmp_path) is None


@pytest.mark.parametrize("good", [True, False], ids=["bfloat16", "no-bfloat16"])
def test_a_small_model_stays_as_it_is(
    source: FusedSource, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    products_of_bfloat16(monkeypatch, good)
    assert precision_for(source) is (Precision.BFLOAT16 if good else Precision.FLOAT32)


def test_the_whole_way(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real questions, real precisions, once; then from what was kept."""
    from draftproof.models import verdicts

    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(verdicts, "SMALL", 0)
    monkeypatch.setattr(verdicts, "fast", lambda precision: True)
    monkeypatch.setattr(verdicts, "PROMPTS", PROMPTS[:3])
    first = load_target(folder, "tiny", TargetOptions(device="cpu"))
    (file,) = (tmp_path / "quality").iterdir()
    qualities = load_qualities(file)
    assert Precision.INT4 in qualities
    assert all(quality.tokens >= 3 for quality in qualities.values())
    monkeypatch.delattr(verdicts, "answers_of")
    second = load_target(folder, "tiny", TargetOptions(device="cpu"))
    assert isinstance(first, FusedTarget)
    assert isinstance(second, FusedTarget)
    assert first.precision is second.precision
