"""A whole run on a tiny model: what it leaves, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_cases import Case, tiny_settings
from safetensors.torch import load_file

from draftproof import LLM, SamplingParams
from draftproof.engine.prompt_files import read_prompt_file
from draftproof.errors import DrafterError, DraftproofWarning, RequestError
from draftproof.models.drafters.config import read_config
from draftproof.models.drafters.vocabulary import FILE
from draftproof.train.estimate import Estimate
from draftproof.train.evaluate import Evaluation, GroupScore, evaluate, first_of_each_group
from draftproof.train.mask_token import choose_mask_token
from draftproof.train.record import draw, read_evaluations, read_steps
from draftproof.train.run import TrainReport, train
from draftproof.train.trainee import commonest
from draftproof.train.watch import Watch

SETTINGS = tiny_settings(steps=20, own_prompts=8, eval_tokens=12)


@pytest.fixture(scope="module")
def done(case: Case, tmp_path_factory: pytest.TempPathFactory) -> TrainReport:
    return train(case.job(tmp_path_factory.mktemp("run") / "drafter"), SETTINGS)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_drafter_drafts_losslessly_and_its_figures_are_what_decoding_gives(
    case: Case, done: TrainReport
) -> None:
    assert done.finished
    assert done.final is not None
    llm = LLM(case.model, str(done.out), dtype="float32", draft_mode="fixed=7")
    plain = llm.with_drafter(None)
    params = SamplingParams(temperature=0.0, max_tokens=SETTINGS.final_tokens)
    counted: dict[str, list[int]] = {"a": [0, 0], "b": [0, 0]}
    for prompt in read_prompt_file(case.held_out, "DP500"):
        result = llm.chat(prompt.chat, params)[0]
        assert result.token_ids == plain.chat(prompt.chat, params)[0].token_ids
        counted[prompt.group][0] += result.stats.target_steps
        counted[prompt.group][1] += result.stats.decode_tokens
    assert {score.group: [score.steps, score.tokens] for score in done.final.groups} == counted
    assert all(steps > 0 for steps, _ in counted.values())


def test_the_card_says_what_happened(case: Case, done: TrainReport) -> None:
    text = (done.out / "README.md").read_text(encoding="utf-8")
    assert done.final is not None
    for score in done.final.groups:
        assert f"| {score.group} | {score.prompts} | {score.tokens} | {score.steps} | " in text
        assert f"{score.tokens / score.steps:.2f} |" in text
    data = json.loads((done.folder / "data.json").read_text())
    assert f"`{data['digest']}`" in text
    assert f"{data['responses']} answers of the target itself" in text
    assert "20 prompts (a 10, b 10)" in text
    assert f"step {done.final.step}, the best" in text
    assert str(Path(case.model).parent) not in text
    recipe = json.loads(text.partition("```json\n")[2].partition("```")[0])
    assert recipe == SETTINGS.recipe()


def test_the_best_of_the_evaluations_is_what_is_written(done: TrainReport) -> None:
    evaluations = read_evaluations(done.folder)
    assert [one.step for one in evaluations] == [5, 10, 15, 20]
    best = max(evaluations, key=lambda one: (one.mean, one.step))
    assert done.final is not None
    assert done.final.step == best.step
    kept = list((done.folder / "drafters").iterdir())
    assert [path.name for path in kept] == [f"step-{best.step:08d}"]
    mine, theirs = load_file(done.out / "model.safetensors"), load_file(kept[0] / "model.safetensors")
    assert mine.keys() == theirs.keys()
    assert all(tensor.dtype == torch.bfloat16 and tensor.equal(theirs[name]) for name, tensor in mine.items())


def test_what_a_run_leaves_to_look_at(done: TrainReport) -> None:
    assert [one.step for one in read_steps(done.folder)] == list(range(1, 21))
    assert (done.folder / "plot.png").read_bytes()[:4] == b"\x89PNG"
    assert list((done.folder / "tensorboard").glob("events.*"))
    assert len(list((done.folder / "checkpoints").iterdir())) == 2


def test_the_same_seed_gives_the_same_weights(case: Case, done: TrainReport, tmp_path: Path) -> None:
    again = train(case.job(tmp_path / "drafter"), SETTINGS)
    mine, theirs = load_file(again.out / "model.safetensors"), load_file(done.out / "model.safetensors")
    assert all(tensor.equal(theirs[name]) for name, tensor in mine.items())


def test_a_finished_run_given_again_does_nothing_new(case: Case, done: TrainReport) -> None:
    before = (done.folder / "steps.jsonl").read_text(), (done.folder / "final.json").stat().st_mtime_ns
    again = train(case.job(done.out), SETTINGS)
    assert (again.finished, again.final, again.progress) == (True, done.final, done.progress)
    assert (
        (done.folder / "steps.jsonl").read_text(),
        (done.folder / "final.json").stat().st_mtime_ns,
    ) == before


def test_answers_of_an_earlier_run_and_weights_of_another_drafter(
    case: Case, done: TrainReport, tmp_path: Path
) -> None:
    job = replace(
        case.job(tmp_path / "second"),
        prompts=(),
        responses=(done.folder / "responses.jsonl",),
        start_from=done.out,
    )
    report = train(job, tiny_settings(steps=2))
    assert report.finished
    first = read_steps(report.folder)[0].loss
    assert first < read_steps(done.folder)[0].loss
    assert not (report.folder / "responses.jsonl").exists()
    mine, before = ((one.out / "README.md").read_text(encoding="utf-8") for one in (report, done))
    assert "## Before that" not in before
    assert f"started from the weights of `{done.out.name}`, of which its card said:" in mine
    assert "### Data\n" + before.partition("## Data\n")[2].partition("## Recipe")[0] in mine


def test_a_drafter_is_not_trained_on_as_another(case: Case, done: TrainReport, tmp_path: Path) -> None:
    """Taps of the same number fit `fc` as well: only the config can tell."""
    taps = read_config(done.out).target_layer_ids
    others = tuple(range(len(taps)))
    assert others != taps
    job = replace(case.job(tmp_path / "second"), start_from=done.out)
    for wrong, said in (
        ({"taps": others}, f"target_layer_ids {taps}"),
        ({"mask_token_id": 3}, "mask_token_id"),
    ):
        with pytest.raises(DrafterError, match=re.escape(said)) as refused:
            train(job, tiny_settings(steps=1, **wrong))
        assert refused.value.code == "DP511"
        assert not job.out.exists()


def test_held_out_prompts_are_refused_or_left_out(case: Case, tmp_path: Path) -> None:
    leaky = tmp_path / "leaky.jsonl"
    leaky.write_text(case.prompts.read_text() + json.dumps({"prompt": " TELL me about  cats."}) + "\n")
    job = replace(case.job(tmp_path / "drafter"), prompts=(leaky,))
    with pytest.raises(RequestError, match="held out for measuring") as refused:
        train(job, tiny_settings(steps=1))
    assert refused.value.code == "DP504"
    assert not list(tmp_path.glob("*.training")), "a run that never began leaves nothing behind"
    report = train(replace(job, drop_leaks=True), tiny_settings(steps=1))
    answered = [row for row in rows(report.folder / "responses.jsonl") if "prompt_ids" in row]
    assert len(answered) == 20


def test_nothing_to_learn_from_or_to_measure_with(case: Case, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    job = case.job(tmp_path / "drafter")
    for wrong in (
        replace(job, prompts=()),
        replace(job, prompts=(empty,)),
        replace(job, held_out=empty),
        replace(job, prompts=(case.held_out,), drop_leaks=True),
    ):
        with pytest.raises(RequestError) as refused:
            train(wrong, tiny_settings(steps=1))
        assert refused.value.code == "DP524"
    with pytest.raises(RequestError) as refused:
        train(job, tiny_settings(steps=1, max_length=8))
    assert refused.value.code == "DP524"


def test_common_tokens_make_up_their_share() -> None:
    counts = {7: 5, 3: 5, 9: 80, 1: 10}
    assert commonest(counts, 0.8) == [9]
    assert commonest(counts, 0.85) == [1, 9]
    assert commonest(counts, 0.95) == [1, 3, 9]  # of two that are as common, the lower id
    assert commonest(counts, 1.0) == [1, 3, 7, 9]


def test_the_drafter_proposes_what_answers_commonly_hold(
    case: Case, done: TrainReport, tmp_path: Path
) -> None:
    """The list lies beside what is measured and what is written, and another share may be asked for afterwards."""
    answered = [row for row in rows(done.folder / "responses.jsonl") if "output_ids" in row]
    occurring = {token for row in answered for token in row["output_ids"]}
    listed = json.loads((done.out / FILE).read_text())["token_ids"]
    assert set(listed) < occurring
    kept = next((done.folder / "drafters").iterdir())
    assert (kept / FILE).read_text() == (done.out / FILE).read_text()
    job = case.job(tmp_path / "drafter")
    train(job, replace(SETTINGS, steps=1, draft_vocabulary=0.5))
    few = json.loads((job.out / FILE).read_text())["token_ids"]
    assert 0 < len(few) < len(listed)
    all_of_them = train(job, replace(SETTINGS, steps=1, draft_vocabulary=1.0))
    assert not (job.out / FILE).exists()
    assert all_of_them.progress.step == 1


def test_an_output_that_cannot_be_written(case: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError) as refused:
        train(case.job(tmp_path / "file" / "drafter"), tiny_settings(steps=1))
    assert refused.value.code == "DP526"


def test_without_tensorboard_and_matplotlib_it_says_so_and_trains(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    gone = ("tensorboard", "matplotlib")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in gone else real(name))
    with pytest.warns(DraftproofWarning) as said:
        report = train(case.job(tmp_path / "drafter"), tiny_settings(steps=2))
    assert report.finished
    assert not (report.folder / "plot.png").exists()
    texts = [str(one.message) for one in said]
    for what in ("no TensorBoard files", "no plot"):
        assert any(text.startswith(what) and "draftproof[train]" in text for text in texts)


def test_a_run_without_steps_has_no_plot(tmp_path: Path) -> None:
    assert not draw(tmp_path, tmp_path / "plot.png")


class Keeper(Watch):
    def __init__(self) -> None:
        self.estimates: list[Estimate] = []

    def estimate(self, estimate: Estimate) -> None:
        self.estimates.append(estimate)


def test_the_estimate_counts_what_is_left(case: Case, done: TrainReport, tmp_path: Path) -> None:
    keeper = Keeper()
    job = replace(case.job(tmp_path / "new"), measure=True, only_measure=True)
    assert not train(job, SETTINGS, keeper).finished
    assert not (tmp_path / "new.training" / "responses.jsonl").exists()
    train(replace(job, out=done.out), SETTINGS, keeper)
    fresh, rest = ({stage.stage: stage for stage in one.stages} for one in keeper.estimates)
    assert [*fresh] == ["answers", "features", "training", "measuring"]
    assert all(stage.seconds > 0 for stage in fresh.values())
    assert [rest[name].seconds for name in ("answers", "features", "training")] == [0.0, 0.0, 0.0]
    row = 64 * 4  # one tap, the most for so shallow a target
    held = sum(len(one["prompt_ids"]) + len(one["output_ids"]) for one in _answers(done))  # type: ignore[arg-type]
    assert rest["features"].disk == pytest.approx(held * row, rel=0.25)
    assert keeper.estimates[0].seconds == pytest.approx(sum(stage.seconds for stage in fresh.values()))


def _answers(done: TrainReport) -> list[dict[str, object]]:
    return [row for row in rows(done.folder / "responses.jsonl") if "prompt_ids" in row]


def test_an_evaluation_counts_each_group_once(case: Case, done: TrainReport) -> None:
    prompts = read_prompt_file(case.held_out, "DP500")
    assert [prompt.group for prompt in first_of_each_group(prompts, 1)] == ["a", "b"]
    assert first_of_each_group(prompts, 9) == prompts
    llm = LLM(case.model, dtype="float32")
    told: list[int] = []
    measured = evaluate(llm, done.out, prompts, step=3, max_tokens=8, advance=told.append)
    assert sum(told) == len(prompts)
    assert Evaluation.from_json(json.loads(json.dumps(measured.as_json()))) == measured
    other = Evaluation(1, 8, 0.0, (GroupScore("a", 1, 100, 100), GroupScore("b", 9, 10, 30)))
    assert other.mean == 2.0


def test_the_mask_token_is_one_that_texts_never_hold(case: Case) -> None:
    tokenizer = LLM(case.model, dtype="float32").tokenizer
    special = sorted(tokenizer.all_special_ids)
    chosen = choose_mask_token(tokenizer, 1000, used=[])
    assert chosen not in {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    size = len(tokenizer) + 5
    assert choose_mask_token(tokenizer, size, used=[*special, size - 1]) == size - 2
    with pytest.raises(RequestError, match="hold every token"):
        choose_mask_token(tokenizer, size, used=range(size))


def test_started_over_with_other_prompts_it_learns_from_their_answers_only(
    case: Case, tmp_path: Path
) -> None:
    """Answers stay in the file, which they took long to get into; but not all of them are asked for any more."""
    fewer, settings = tmp_path / "fewer.jsonl", tiny_settings(steps=1)
    lines = case.prompts.read_text(encoding="utf-8").splitlines(keepends=True)
    fewer.write_text("".join(lines[:5]), encoding="utf-8")
    first = train(case.job(tmp_path / "drafter"), settings)
    before = (first.folder / "responses.jsonl").read_bytes()
    job = replace(case.job(tmp_path / "drafter"), prompts=(fewer,))
    with pytest.raises(RequestError, match="holds another run: prompts was"):
        train(job, settings)
    second = train(replace(job, restart=True), settings)
    assert (second.folder / "responses.jsonl").read_bytes() == before
    assert json.loads((second.folder / "data.json").read_text())["responses"] == 5


def test_the_best_so_far_is_measured_again_when_measuring_changes(case: Case, tmp_path: Path) -> None:
    short, longer = tiny_settings(steps=5), tiny_settings(steps=10, eval_prompts=2, eval_tokens=16)
    out = tmp_path / "drafter"
    report = train(case.job(out), short)
    train(case.job(out), longer)
    best = Evaluation.from_json(json.loads((report.folder / "best.json").read_text()))
    assert best.max_tokens == 16
    assert [group.prompts for group in best.groups] == [2, 2]
    latest = read_evaluations(report.folder)[-1]
    assert best.mean >= latest.mean
