"""Doctor on a pair that was trained to draft well: each fault planted in it is found, and the pair as it is gets well away."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from draftproof import LLM, SamplingParams
from draftproof.audit import AuditPrompt, as_text
from draftproof.audit.doctor import DoctorOptions, DoctorReport, as_document, as_table, diagnose, load_pair
from draftproof.audit.doctor.examine import MENDABLE
from draftproof.audit.doctor.gains import CLEARLY, Compared, gain
from draftproof.audit.doctor.scoring import Score, score
from draftproof.audit.doctor.slots import first_untrained
from draftproof.audit.doctor.texts import TextSet
from draftproof.errors import DrafterError, RequestError
from draftproof.models.drafters import load_drafter, write_random_checkpoint
from support.trained_pair import (
    BLOCK,
    COLOURS,
    MASK,
    SCALE,
    TAPS,
    TrainedPair,
    prompts,
    trained_pair,
    unlearn_slots,
)

ASKED = [AuditPrompt("", text) for text in prompts()[::5]]
SHORT = DoctorOptions(max_tokens=20)
Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def good() -> TrainedPair:
    return trained_pair()


@dataclass(frozen=True)
class Sick:
    """A scratch copy of a good pair, to plant faults in."""

    target: Path
    drafter: Path

    def edit(self, change: Callable[[Config], None]) -> None:
        """Change the drafter's config."""
        _edit(self.drafter, change)

    def rewrite(self, change: Callable[[Tensors], None], folder: Path | None = None) -> None:
        """Change weights, the drafter's when no folder is named."""
        file = (folder or self.drafter) / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})

    def examine(self, options: DoctorOptions = SHORT, dtype: str = "auto") -> DoctorReport:
        pair = load_pair(str(self.target), str(self.drafter), dtype=dtype)
        return diagnose(pair, ASKED, options)


def _edit(folder: Path, change: Callable[[Config], None]) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(config)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def own(**fields: object) -> Callable[[Config], None]:
    """Set fields of ``dflash_config``."""
    return lambda config: config["dflash_config"].update(fields)


@pytest.fixture
def sick(good: TrainedPair, tmp_path: Path) -> Sick:
    shutil.copytree(good.target, tmp_path / "target")
    shutil.copytree(good.drafter, tmp_path / "drafter")
    return Sick(tmp_path / "target", tmp_path / "drafter")


def the_finding(report: DoctorReport, kind: str) -> str:
    """The name of the first correction found, which must be of that kind and bring the pair back to health."""
    assert not report.healthy
    assert report.verdict.startswith("doctor: FOUND: ")
    first = report.findings[0]
    assert first.kind == kind, report.verdict
    assert report.settled is not None
    assert report.settled.acceptance_length > 4.5
    assert first.after >= CLEARLY * first.before
    return first.name


def test_a_healthy_pair_is_called_healthy(sick: Sick) -> None:
    report = sick.examine()
    assert report.healthy, report.verdict
    assert report.verdict.startswith("doctor: healthy: ")
    assert not report.findings
    assert report.block_size == BLOCK
    assert {trial.kind for trial in report.trials} >= {
        "taps",
        "rope",
        "rope-style",
        "mask",
        "scale",
        "template",
    }
    assert all(trial.verdict in ("worse", "no clear difference") for trial in report.trials)
    assert report.as_is is not None
    assert report.as_is.acceptance_length > 4.5
    assert report.yardstick < 1.5


# the planted faults


@pytest.mark.parametrize(("shift", "said"), [(1, "one lower: 1, 2"), (-1, "one higher: 1, 2")])
def test_shifted_taps_are_found(sick: Sick, shift: int, said: str) -> None:
    sick.edit(own(target_layer_ids=[tap + shift for tap in TAPS]))
    assert said in the_finding(sick.examine(), "taps")


def test_taps_in_another_order_are_found(sick: Sick) -> None:
    sick.edit(own(target_layer_ids=TAPS[::-1]))
    assert "in ascending order: 1, 2" in the_finding(sick.examine(), "taps")


def test_another_rope_base_is_found(sick: Sick) -> None:
    sick.edit(lambda config: config.update(rope_theta=1_000_000.0))
    assert "RoPE base 10000" in the_finding(sick.examine(), "rope")


@pytest.mark.parametrize("to_pairs", [True, False])
def test_the_other_rope_style_is_found(sick: Sick, to_pairs: bool) -> None:
    halves = torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2)))
    order = halves.argsort() if to_pairs else halves

    def reorder(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                tensors[name] = tensor.view(-1, 16, tensor.shape[1])[:, order].reshape(tensor.shape)
            elif name.endswith(("q_norm.weight", "k_norm.weight")):
                tensors[name] = tensor[order]

    sick.rewrite(reorder)
    name = the_finding(sick.examine(), "rope-style")
    assert ("pairs to halves" if to_pairs else "halves to pairs") in name


def test_another_mask_token_is_found(sick: Sick) -> None:
    sick.edit(own(mask_token_id=3))
    assert the_finding(sick.examine(), "mask") == f"mask token {MASK}"


def test_a_lost_embedding_scale_is_found(sick: Sick) -> None:
    sick.edit(lambda config: config["dflash_config"].pop("input_embedding_scale"))
    report = sick.examine()
    assert "the root of the hidden size" in the_finding(report, "scale")
    assert f"input_embedding_scale to {SCALE:g}" in report.findings[0].remedy


def test_prompts_without_the_template_it_was_trained_with_are_found(sick: Sick) -> None:
    report = sick.examine(DoctorOptions(max_tokens=20, raw=True))
    assert the_finding(report, "template") == "prompts with chat template"


def test_a_target_that_quantising_has_changed_is_found(sick: Sick) -> None:
    """Outlier channels, which leave the floating-point model as it was and take 4-bit groups all their resolution."""

    def with_outliers(tensors: Tensors) -> None:
        for layer in range(4):
            for norm, products in (
                ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
            ):
                tensors[f"model.layers.{layer}.{norm}.weight"][::16] /= 64
                for product in products:
                    tensors[f"model.layers.{layer}.{product}.weight"][:, ::16] *= 64

    sick.rewrite(with_outliers, sick.target)
    assert sick.examine().healthy
    report = sick.examine(dtype="int4")
    assert report.precision == "int4"
    assert the_finding(report, "precision") == "target in bfloat16"


def test_slots_that_were_never_trained_are_found(good: TrainedPair, sick: Sick) -> None:
    unlearn_slots(good, sick.drafter, 3)
    report = sick.examine(DoctorOptions(max_tokens=20, only=("block", "taps", "mask")))
    assert not report.healthy
    assert [(one.kind, one.name) for one in report.findings] == [("block", "block size 3")]
    assert report.findings[0].cause.startswith("its slots from 3 on agree with next to nothing")
    assert report.as_is is not None
    assert report.as_is.acceptance_length > 2.5
    assert (
        report.findings[0].after > 0.95 * report.as_is.acceptance_length
    )  # two slots fewer, and as good as nothing lost


def test_a_block_far_longer_than_trained_is_found(sick: Sick) -> None:
    """Slots beyond the trained ones draft little, and, being attended to, spoil those that were trained."""
    sick.edit(lambda config: config.update(block_size=32))
    report = sick.examine()
    assert report.block_size == 32
    assert the_finding(report, "block") == "block size 8"


def test_two_faults_at_once_are_both_found(sick: Sick) -> None:
    sick.edit(own(target_layer_ids=[tap + 1 for tap in TAPS]))
    sick.edit(lambda config: config.update(rope_theta=1_000_000.0))
    report = sick.examine()
    assert {finding.kind for finding in report.findings} == {"taps", "rope"}
    assert report.settled is not None
    assert report.settled.acceptance_length > 4.5


def test_a_checkpoint_that_is_refused_is_mended_where_that_can_be(sick: Sick) -> None:
    sick.edit(lambda config: config.pop("rope_theta"))
    report = sick.examine()
    assert report.as_is is None
    assert report.refusal.startswith(f"DP314 {sick.drafter}")
    assert "RoPE base 10000" in the_finding(report, "rope")


def test_what_no_correction_can_mend_is_an_error_as_ever(sick: Sick) -> None:
    sick.rewrite(lambda tensors: tensors["fc.weight"].fill_(math.nan))
    with pytest.raises(DrafterError) as caught:
        sick.examine()
    assert caught.value.code == "DP308"
    assert str(sick.drafter) in caught.value.message
    assert "draftproof-doctor" not in caught.value.message
    assert caught.value.code not in MENDABLE


def test_an_untrained_drafter_is_low_and_has_no_reason(sick: Sick) -> None:
    shutil.rmtree(sick.drafter)
    info = load_pair(str(sick.target), str(sick.target)).llm.target.info
    write_random_checkpoint(
        sick.drafter,
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        num_target_layers=info.num_layers,
        target_layer_ids=TAPS,
    )
    report = sick.examine()
    assert (report.healthy, report.low, report.findings) == (False, True, [])
    assert report.verdict.startswith("doctor: LOW: ")


def test_the_users_folders_are_left_alone(sick: Sick) -> None:
    def contents() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in sorted(sick.drafter.rglob("*"))}

    sick.edit(own(mask_token_id=3))
    before = contents()
    sick.examine()
    assert contents() == before


# how it measures


def test_the_score_is_what_decoding_gives(good: TrainedPair) -> None:
    """The mask token is made another, so that drafts of every length are accepted."""
    llm = LLM(str(good.target), draft_mode="off")
    drafter = load_drafter(good.drafter, llm.target.info)
    object.__setattr__(drafter.config, "mask_token_id", 3)  # type: ignore[attr-defined]
    texts = TextSet(llm, [llm.tokenizer(prompt.text)["input_ids"] for prompt in ASKED], 24)
    scored = score(drafter, texts)
    engine = llm.with_drafter(drafter, draft_mode=f"fixed={BLOCK - 1}")
    greedy = SamplingParams(temperature=0.0, max_tokens=24)
    results = engine.generate([t.token_ids[: t.prompt_count] for t in texts.texts], greedy, progress=False)
    assert [r.token_ids for r in results] == [t.token_ids[t.prompt_count :] for t in texts.texts]
    assert list(scored.tokens) == [r.stats.decode_tokens for r in results]
    # Towards its end an engine drafts shorter blocks, which may hold other tokens.
    apart = [abs(steps - r.stats.target_steps) for steps, r in zip(scored.steps, results, strict=True)]
    assert max(apart) <= 2
    assert sum(scored.steps) == pytest.approx(sum(r.stats.target_steps for r in results), rel=0.03)


def a_score(steps: list[int], tokens: int = 60) -> Compared:
    return Compared(Score((tokens,) * len(steps), tuple(steps), (), ()))


def test_a_gain_on_every_prompt_is_clear_and_one_on_a_single_prompt_is_not() -> None:
    before = a_score([50] * 12)
    everywhere = gain(a_score([40] * 12), before)
    assert everywhere.clear
    assert everywhere.ratio == pytest.approx(1.25)
    once = gain(a_score([50] * 11 + [10]), before)
    assert once.ratio > 1.05
    assert not once.clear
    assert gain(a_score([55] * 12), before).loss


def test_no_difference_is_rarely_called_clear() -> None:
    """Per-prompt noise of 10% and no true difference: a false alarm in fewer than 2 of 100 comparisons (expected: 0.1)."""
    noise = np.random.default_rng(5)

    def noisy() -> Compared:
        return a_score([round(50 * factor) for factor in noise.normal(1.0, 0.1, 12)])

    assert sum(gain(noisy(), noisy()).clear for _ in range(100)) < 2


def test_easier_text_is_no_gain_of_the_drafters() -> None:
    before = Compared(a_score([50] * 12).score, a_score([55] * 12).score)
    after = Compared(a_score([40] * 12).score, a_score([40] * 12).score)
    assert gain(Compared(after.score), Compared(before.score)).clear
    assert not gain(after, before).clear


@given(st.lists(st.integers(1, 60), min_size=4, max_size=12))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_a_gain_lies_in_its_interval_and_turns_round_with_its_sides(steps: list[int]) -> None:
    one, other = a_score(steps), a_score([60] * len(steps))
    there, back = gain(one, other), gain(other, one)
    assert there.low <= there.ratio * (1 + 1e-9)
    assert there.high >= there.ratio * (1 - 1e-9)
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.low * back.high == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    ("reached", "agreed", "slot"),
    [
        ((200, 180, 160, 140), (180, 160, 140, 130), None),
        ((200, 180, 160, 3), (180, 160, 3, 0), 3),
        ((200, 120, 48, 12), (120, 48, 12, 2), None),  # steeply worse, and still of use
        ((646, 222, 59, 16, 7, 2, 0), (222, 59, 16, 7, 2, 0, 0), None),  # a weak drafter, all slots trained
        ((200, 20, 2), (20, 2, 0), None),  # too few to tell
        ((200,), (180,), None),
        ((), (), None),
    ],
)
def test_untrained_slots_are_told_from_weak_ones(
    reached: tuple[int, ...], agreed: tuple[int, ...], slot: int | None
) -> None:
    assert first_untrained(Score((), (), reached, agreed)) == slot


# what it says


def test_table_and_document_say_the_same(sick: Sick) -> None:
    sick.edit(own(mask_token_id=3))
    report = sick.examine()
    text, document = as_text(as_table(report)), json.loads(json.dumps(as_document(report)))
    assert document["verdict"] == report.verdict
    assert document["findings"][0]["name"] == f"mask token {MASK}"
    assert document["settled"]["acceptance_length"] == report.settled.acceptance_length  # type: ignore[union-attr]
    assert len(document["trials"]) == len(report.trials)
    for said in (
        "as it stands",
        f"mask token {MASK} ",
        "clearly better <",
        "other mask tokens",
        "set dflash_config.mask_token_id to 5",
        "agree where those before did",
    ):
        assert said in text, said


def test_only_the_kinds_asked_for_are_tried(sick: Sick) -> None:
    report = sick.examine(DoctorOptions(max_tokens=20, only=("taps",)))
    assert {trial.kind for trial in report.trials} == {"taps"}


@pytest.mark.parametrize(("max_tokens", "asked"), [(3, ASKED), (20, ASKED[:3])])
def test_too_little_text_is_refused(sick: Sick, max_tokens: int, asked: list[AuditPrompt]) -> None:
    pair = load_pair(str(sick.target), str(sick.drafter))
    with pytest.raises(RequestError, match="at least 4 are needed") as caught:
        diagnose(pair, asked, DoctorOptions(max_tokens=max_tokens))
    assert caught.value.code == "DP541"


def test_options_are_checked() -> None:
    for options in ({"max_tokens": 0}, {"only": ("tap",)}):
        with pytest.raises(RequestError) as caught:
            DoctorOptions(**options)  # type: ignore[arg-type]
        assert caught.value.code == "DP542"


@pytest.mark.parametrize("drafter", ["ngram", None])
def test_there_must_be_a_checkpoint(good: TrainedPair, drafter: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        load_pair(str(good.target), drafter)
    assert caught.value.code == "DP540"


def test_the_language_is_learnt(good: TrainedPair) -> None:
    """The pair itself: the target knows every order, so what the other tests plant is all that is wrong."""
    from support.trained_pair import answer

    llm = LLM(str(good.target), draft_mode="off")
    greedy = SamplingParams(temperature=0.0, max_tokens=20)
    some = [f"{colour} {letter}" for colour in COLOURS for letter in "agm"]
    raw = llm.generate(some, greedy, progress=False)
    assert [r.text for r in raw] == [answer(prompt, False, 20) for prompt in some]
    chat = llm.chat([[{"role": "user", "content": prompt}] for prompt in some], greedy, progress=False)
    assert [r.text for r in chat] == [answer(prompt, True, 20) for prompt in some]
