"""The target answers prompts: the same answers whatever the company, the interruptions and the drafter."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from draftproof import LLM, SamplingParams
from draftproof.engine.prompt_files import FilePrompt
from draftproof.errors import RequestError
from draftproof.train.bars import StageProgress, as_time, showing_stage
from draftproof.train.leaks import HeldOut
from draftproof.train.regenerate import OWN_GROUP, ResponsePlan, Summary, about_of, regenerate
from draftproof.train.responses import ResponseFile, read_responses, within_budget
from support.llms import END, make_drafter, tiny_llm

PROMPTS = [
    FilePrompt.asking(f"Say {number} {'words ' * (number % 4)}", f"g{number % 2}") for number in range(20)
]
PLAN = ResponsePlan(max_tokens=10, own_prompts=16, own_max_tokens=120, min_words=1, in_flight=6)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return tiny_llm()


@pytest.fixture(scope="module")
def whole(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """An undisturbed run."""
    path = tmp_path_factory.mktemp("whole") / "r.jsonl"
    return path, regenerate(llm, PROMPTS, PLAN, path)


def contents(path: Path) -> list[str]:
    return sorted(path.read_text(encoding="utf-8").splitlines())


def test_every_prompt_is_answered_once_by_template_and_plan(llm: LLM, whole: tuple[Path, Summary]) -> None:
    path, summary = whole
    answers = read_responses(path)
    assert summary.complete
    assert (summary.answers, summary.found) == (len(answers), 0)
    assert summary.response_tokens == sum(len(one.output_ids) for one in answers) <= summary.new_tokens
    given = [one for one in answers if one.group != OWN_GROUP]
    assert len(given) == len(PROMPTS) == len({one.prompt_ids for one in given})
    for prompt in PROMPTS:
        encoded = llm.chat(prompt.chat, SamplingParams(max_tokens=1))[0].prompt_token_ids
        one = next(one for one in given if one.prompt_ids == tuple(encoded))
        assert one.group == prompt.group
    assert {one.temperature for one in answers} == {0.0, 0.7}
    assert all(len(one.output_ids) == 10 or one.output_ids[-1] == END for one in answers)


def test_answers_are_those_that_the_engine_gives_alone(llm: LLM, whole: tuple[Path, Summary]) -> None:
    greedy = [one for one in read_responses(whole[0]) if one.temperature == 0][:4]
    for one in greedy:
        result = llm.generate(list(one.prompt_ids), SamplingParams(temperature=0, max_tokens=10))[0]
        assert tuple(result.token_ids) == one.output_ids


def test_the_drafter_and_the_batch_change_no_answer(
    llm: LLM, whole: tuple[Path, Summary], tmp_path: Path
) -> None:
    drafted = llm.with_drafter(make_drafter(llm, "dflash", 4), draft_mode="fixed=3")
    regenerate(drafted, PROMPTS[::-1], replace(PLAN, in_flight=2), tmp_path / "r.jsonl")
    assert contents(tmp_path / "r.jsonl") == contents(whole[0])


def test_a_seed_changes_what_is_sampled(llm: LLM, whole: tuple[Path, Summary], tmp_path: Path) -> None:
    regenerate(llm, PROMPTS, replace(PLAN, seed=1, own_prompts=0), tmp_path / "r.jsonl")
    before = {one.key: one.output_ids for one in read_responses(whole[0])}
    both = [one for one in read_responses(tmp_path / "r.jsonl") if one.key in before and one.temperature]
    assert both
    assert any(before[one.key] != one.output_ids for one in both)


@pytest.mark.parametrize(("share", "count"), [(0.0, 1), (1.0, 1), (0.5, 3), (1.0, 3)])
def test_shares_and_answers_per_prompt(llm: LLM, tmp_path: Path, share: float, count: int) -> None:
    plan = ResponsePlan(max_tokens=2, greedy_share=share, answers_per_prompt=count, in_flight=64)
    regenerate(llm, PROMPTS, plan, tmp_path / "r.jsonl")
    answers = read_responses(tmp_path / "r.jsonl")
    assert len(answers) == count * len(PROMPTS)
    greedy = sum(one.temperature == 0 for one in answers)
    assert greedy == (len(PROMPTS) if share * count >= 1 else 0)


def test_the_target_makes_up_prompts(llm: LLM, whole: tuple[Path, Summary]) -> None:
    path, summary = whole
    made = ResponseFile(path).made_up()
    assert [prompt.number for prompt in made] == list(range(PLAN.own_prompts))
    assert summary.own_kept + summary.own_dropped == PLAN.own_prompts
    texts = [prompt.text for prompt in made if prompt.text]
    assert 0 < summary.own_kept <= len(texts) < PLAN.own_prompts
    own = [one for one in read_responses(path) if one.group == OWN_GROUP]
    assert len(own) == summary.own_kept
    opening = llm.tokenizer("<|im_start|>user\n", add_special_tokens=False)["input_ids"]
    assert all(list(one.prompt_ids[: len(opening)]) == opening for one in own)


def test_made_up_prompts_that_are_known_short_or_held_out_are_dropped(
    llm: LLM, whole: tuple[Path, Summary], tmp_path: Path
) -> None:
    path, summary = whole
    texts = [prompt.text for prompt in ResponseFile(path).made_up() if prompt.text]

    def run(plan: ResponsePlan, prompts: list[FilePrompt], held: list[str]) -> Summary:
        copy = tmp_path / "r.jsonl"
        copy.write_bytes(path.read_bytes())
        out = HeldOut([FilePrompt.asking(text) for text in held])
        return regenerate(llm, prompts, plan, copy, held_out=out)

    again = run(PLAN, [*PROMPTS, FilePrompt.asking(texts[0].upper())], [texts[1]])
    assert (again.own_kept, again.held_out) == (summary.own_kept - 2, 1)
    assert run(replace(PLAN, min_words=1000), PROMPTS, []).own_kept == 0


def after(calls: int) -> Callable[[], bool]:
    """True from the n-th call on."""
    left = [calls]

    def stop() -> bool:
        left[0] -= 1
        return left[0] <= 0

    return stop


@pytest.mark.parametrize("calls", [1, 60, 160])
def test_a_stopped_run_goes_on_to_the_same_end(
    llm: LLM, whole: tuple[Path, Summary], tmp_path: Path, calls: int
) -> None:
    path = tmp_path / "r.jsonl"
    first = regenerate(llm, PROMPTS, PLAN, path, stop=after(calls))
    assert not first.complete
    assert llm.loop.unfinished == 0
    last = regenerate(llm, PROMPTS, PLAN, path)
    assert last.complete
    assert last.found == first.answers
    assert (last.answers, last.response_tokens) == (whole[1].answers, whole[1].response_tokens)
    assert contents(path) == contents(whole[0])
    nothing = regenerate(llm, PROMPTS, PLAN, path)
    assert (nothing.new_tokens, nothing.found) == (0, whole[1].answers)


def test_a_file_cut_anywhere_goes_on_to_the_same_end(
    llm: LLM, whole: tuple[Path, Summary], tmp_path: Path
) -> None:
    content = whole[0].read_bytes()
    path = tmp_path / "r.jsonl"
    chance = random.Random(5)
    for size in [0, 5, len(content) - 1, *(chance.randrange(len(content)) for _ in range(3))]:
        path.write_bytes(content[:size])
        regenerate(llm, PROMPTS, PLAN, path)
        assert contents(path) == contents(whole[0])


def test_an_interrupt_keeps_what_is_finished(llm: LLM, whole: tuple[Path, Summary], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    told: list[StageProgress] = []

    def interrupt(progress: StageProgress) -> None:
        told.append(progress)
        if progress.stage == "answering":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regenerate(llm, PROMPTS, PLAN, path, interrupt)
    assert llm.loop.unfinished == 0
    assert {progress.stage for progress in told} == {"making up prompts", "answering"}
    assert len(read_responses(path)) == told[-1].done
    assert len(ResponseFile(path).made_up()) == PLAN.own_prompts
    regenerate(llm, PROMPTS, PLAN, path)
    assert contents(path) == contents(whole[0])


RUN = """
import sys, time
from pathlib import Path
from support.llms import tiny_llm
import train.test_regenerate as here
module = sys.modules["draftproof.train.regenerate"]
module.FLUSH_SECONDS = module.TELL_SECONDS = 0.0
def slowly(progress):
    print(progress.done, flush=True)
    time.sleep(0.02)
module.regenerate(tiny_llm(), here.PROMPTS, here.PLAN, Path(sys.argv[1]), slowly)
"""


def test_a_killed_process_goes_on_to_the_same_end(
    llm: LLM, whole: tuple[Path, Summary], tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{RUN}"
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = 0  # the loading of the model prints lines of its own
    wanted = random.Random().randrange(3, PLAN.own_prompts + 15)
    while told < wanted:
        line = process.stdout.readline()
        assert line, "the run ended before it was killed"
        told += line.strip().isdigit()
    process.kill()
    process.wait()
    process.stdout.close()
    assert 2 < len(contents(path)) < len(contents(whole[0]))
    regenerate(llm, PROMPTS, PLAN, path)
    assert contents(path) == contents(whole[0])


def test_a_budget_of_tokens_gives_the_same_answers_however_it_is_reached(
    llm: LLM, whole: tuple[Path, Summary], tmp_path: Path
) -> None:
    everything = read_responses(whole[0])
    wanted = within_budget(everything, 120)
    plan = replace(PLAN, response_tokens=120)
    path = tmp_path / "r.jsonl"
    calls = 60
    while not (summary := regenerate(llm, PROMPTS, plan, path, stop=after(calls))).complete:
        calls += 80
    assert 120 <= summary.response_tokens < whole[1].response_tokens
    assert within_budget(read_responses(path), 120) == wanted
    summary = regenerate(llm, PROMPTS, plan, path)
    assert summary.new_tokens == 0


def test_prompts_too_long_are_left_out(llm: LLM, tmp_path: Path) -> None:
    long = FilePrompt.asking("word " * 600)
    summary = regenerate(llm, [*PROMPTS[:2], long], ResponsePlan(max_tokens=2), tmp_path / "r.jsonl")
    assert (summary.answers, summary.too_long) == (2, 1)
    for prompts in ([], [long]):
        with pytest.raises(RequestError, match="nothing to answer") as caught:
            regenerate(llm, prompts, ResponsePlan(max_tokens=2), tmp_path / "s.jsonl")
        assert caught.value.code == "DP500"


def test_a_model_without_a_template_goes_on_with_plain_text(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.tokenizer, "chat_template", None)
    regenerate(llm, PROMPTS[:2], ResponsePlan(max_tokens=2), tmp_path / "r.jsonl")
    ids = {one.prompt_ids for one in read_responses(tmp_path / "r.jsonl")}
    assert ids == {tuple(llm.tokenizer(prompt.text)["input_ids"]) for prompt in PROMPTS[:2]}
    with pytest.raises(RequestError, match="no chat template") as caught:
        regenerate(llm, PROMPTS[:2], PLAN, tmp_path / "s.jsonl")
    assert caught.value.code == "DP506"


def test_another_target_s_file_is_not_added_to(llm: LLM, whole: tuple[Path, Summary]) -> None:
    with pytest.raises(RequestError, match="answers of llama, not of qwen3") as caught:
        regenerate(tiny_llm("qwen3"), PROMPTS, PLAN, whole[0])
    assert caught.value.code == "DP503"
    assert about_of(llm, PLAN) == about_of(llm, replace(PLAN, own_prompts=0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"greedy_share": -0.1},
        {"greedy_share": float("nan")},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"max_tokens": 0},
        {"answers_per_prompt": 0},
        {"own_prompts": -1},
        {"own_max_tokens": 1.5},
        {"in_flight": 0},
        {"response_tokens": 0},
        {"seed": True},
    ],
)
def test_plans_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))) as caught:
        ResponsePlan(**wrong)  # type: ignore[arg-type]
    assert caught.value.code == "DP505"


def test_the_bar_tells_pace_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    progress = StageProgress("answering", 30, 130, 20, 500, 5.0)
    assert (progress.tokens_per_second, progress.seconds_left) == (100.0, 50.0)
    assert StageProgress("answering", 20, 130, 20, 0, 0.0).seconds_left is None
    with showing_stage(True) as tell:
        tell(progress)
        time.sleep(0.15)
    shown = capsys.readouterr().err
    assert "answering" in shown
    assert "100 tok/s" in shown
    with showing_stage(False) as tell:
        tell(progress)
    assert capsys.readouterr().err == ""
    assert [as_time(seconds) for seconds in (44.6, 60, 725, 12_000)] == ["45s", "1m 00s", "12m 05s", "3h 20m"]
