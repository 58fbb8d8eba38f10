"""Whatever breaks ends the requests it concerns, with a coded error; others are answered rightly, and the engine goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import pytest
import torch

from draftproof import LLM, RequestResult, SamplingParams
from draftproof.errors import RequestError
from draftproof.models.drafters.base import ContextUpdate, DraftProposal
from draftproof.models.rows import Segment, TargetOutput
from draftproof.sampling import StructuredOutputs
from support.engines import (
    Ask,
    Running,
    WitnessDrafter,
    assert_clean,
    check_events,
    core_of,
    engine,
    outcome,
    random_prompt,
    run_all,
    short_llm,
    step_until_done,
    tiny_drafter,
)

CONTEXT = 256


def ask(length: int, seed: int = 0, max_tokens: int = 24, **fields: object) -> Ask:
    fields = {"temperature": 0.0, "ignore_eos": True, **fields}
    params = SamplingParams(seed=seed, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
    return Ask(random_prompt(length, random.Random(seed)), params)


def build(*asks: Ask, mode: str = "fixed=7", **sizes: int | bool | None) -> LLM:
    """With a drafter that is often right for these."""
    drafter = WitnessDrafter()
    for one in asks:
        drafter.learn(one.prompt, alone(one))
    return engine(short_llm(CONTEXT), drafter, mode, **sizes)  # type: ignore[arg-type]


def alone(one: Ask) -> RequestResult:
    return one.alone(short_llm(CONTEXT))


def assert_failed(running: Running, code: str) -> None:
    check_events(running.events)
    assert running.result.error is not None
    assert running.result.error.code == code
    assert {choice.finish_reason for choice in running.result.choices} <= {"error", "stop", "length"}


def assert_goes_on(llm: LLM, *asks: Ask) -> None:
    """Clean, and as good as new."""
    assert_clean(llm)
    for one, result in zip(asks, run_all(llm, asks), strict=True):
        assert outcome(result) == outcome(alone(one))


class Once:
    """Wraps a function: raises at its call number `at`, once."""

    def __init__(self, inner: Callable[..., Any], error: BaseException, at: int) -> None:
        self.inner, self.error, self.at = inner, error, at
        self.calls = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return self.inner(*args, **named)


class TargetOf:
    """A target whose forward is another function; all else is the real one's."""

    def __init__(self, target: Any, forward: Callable[..., TargetOutput]) -> None:
        self._target, self.forward = target, forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def with_forward(
    llm: LLM, wrap: Callable[[Callable[..., TargetOutput]], Callable[..., TargetOutput]]
) -> None:
    core = core_of(llm)
    core._runner.target = TargetOf(core.target, wrap(core.target.forward))  # type: ignore[assignment]


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_the_target_raises(at: int, prefix_caching: bool) -> None:
    """All that took part in the step end; who waited does not notice."""
    asks = [ask(40 + 30 * seed, seed) for seed in range(3)]
    llm = build(*asks, max_num_seqs=2, prefix_caching=prefix_caching)
    with_forward(llm, lambda inner: Once(inner, ValueError("no memory left"), at))
    running = [one.submit(llm) for one in asks]
    step_until_done(llm)
    for one in running[:2]:
        assert_failed(one, "DP451")
        assert "no memory left" in str(one.result.error)
    assert outcome(running[2].result) == outcome(alone(asks[2]))
    assert_goes_on(llm, *asks)
    assert core_of(llm).metrics.finished["error"] == 2


def poisoning(inner: Callable[..., TargetOutput], length: int, at: int) -> Callable[..., TargetOutput]:
    """The target's forward; before call `at` the keys and values of the sequence of that prompt length become NaN."""
    calls = 0

    def forward(segments: Sequence[Segment], taps: Sequence[int] = ()) -> TargetOutput:
        nonlocal calls
        calls += 1
        for segment in segments:
            if calls == at and length <= segment.kv.length < length + 30:
                for layer in segment.kv.pages.values:
                    assert layer is not None
                    layer[segment.kv.table[0]] = torch.nan
        return inner(segments, taps)

    return forward


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_nan_of_one_sequence_is_its_own_affair(temperature: float, prefix_caching: bool) -> None:
    asks = [ask(length, seed, temperature=temperature) for seed, length in enumerate((20, 120, 70))]
    llm = build(*asks, blocks=12, prefix_caching=prefix_caching)
    with_forward(llm, lambda inner: poisoning(inner, 120, 4))
    running = [one.submit(llm) for one in asks]
    step_until_done(llm)
    error = running[1].result.error
    assert error is not None
    assert error.code in ("DP262", "DP121")
    check_events(running[1].events)
    came = running[1].result.token_ids
    assert came == alone(asks[1]).token_ids[: len(came)]
    for index in (0, 2):
        assert outcome(running[index].result) == outcome(alone(asks[index]))
    # Whoever gets its blocks next must find no NaN in them.
    assert_goes_on(llm, *asks, *(ask(100, seed) for seed in range(10, 16)))


def test_nan_behind_a_rejected_draft_concerns_nobody() -> None:
    """Without drafting nobody would have seen that row."""
    one = ask(30)
    drafter = WitnessDrafter(period=2)
    drafter.learn(one.prompt, alone(one))
    llm = engine(short_llm(CONTEXT), drafter)

    def broken(inner: Callable[..., TargetOutput]) -> Callable[..., TargetOutput]:
        def forward(segments: Sequence[Segment], taps: Sequence[int] = ()) -> TargetOutput:
            output = inner(segments, taps)
            if segments[0].count == 8:  # anchor and drafts, of which two at most are right
                output.logits[4:] = torch.nan
            return output

        return forward

    with_forward(llm, broken)
    assert outcome(run_all(llm, [one])[0]) == outcome(alone(one))


@pytest.mark.parametrize("what", ["propose", "extend", "new_state"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_the_drafter_raises(what: str, at: int) -> None:
    asks = [ask(30, seed, 60) for seed in range(2)]
    llm = build(*asks)
    drafter = core_of(llm).drafter
    inner = getattr(drafter, what)
    setattr(drafter, what, Once(inner, ArithmeticError("lost"), at))
    running = [one.submit(llm) for one in asks]
    step_until_done(llm)
    for one, mine in zip(running, asks, strict=True):
        if one.result.error is None:
            assert outcome(one.result) == outcome(alone(mine))
        else:
            assert_failed(one, "DP451")
    # Context that could not be taken in while nobody needed it is tried again, so a single failure of `extend` may cost nothing.
    if what == "propose" or (what == "new_state" and at <= 2):
        assert any(one.result.error for one in running)
    setattr(drafter, what, inner)
    assert_goes_on(llm, *asks)


@pytest.mark.parametrize(
    "tokens", [torch.tensor([[1]]), torch.tensor([0.5]), torch.tensor([10**6]), torch.tensor([-1])]
)
def test_the_drafter_proposes_nonsense(tokens: torch.Tensor) -> None:
    one = ask(10)
    llm = build(one)
    drafter: Any = core_of(llm).drafter
    inner = drafter.propose
    drafter.propose = lambda requests: [DraftProposal(tokens) for _ in requests]
    running = one.submit(llm)
    step_until_done(llm)
    assert_failed(running, "DP318")
    drafter.propose = inner
    assert_goes_on(llm, one)


@pytest.mark.parametrize("confidence", [torch.full((1,), 0.5), torch.full((9, 1), 0.5), [0.5] * 9])
def test_confidence_that_is_none(confidence: Any) -> None:
    one = ask(10)
    llm = build(one, mode="auto")
    drafter: Any = core_of(llm).drafter
    inner = drafter.propose
    drafter.propose = lambda requests: [DraftProposal(p.tokens, confidence) for p in inner(requests)]
    running = one.submit(llm)
    step_until_done(llm)
    assert_failed(running, "DP318")


def test_confidence_that_is_no_number_misleads_nobody() -> None:
    one = ask(10, 0, 60)
    llm = build(one, mode="auto")
    drafter: Any = core_of(llm).drafter
    inner = drafter.propose
    drafter.propose = lambda requests: [
        DraftProposal(p.tokens, torch.full((7,), torch.nan)) for p in inner(requests)
    ]
    for _ in range(4):
        assert outcome(run_all(llm, [one])[0]) == outcome(alone(one))
    drafter.propose = inner
    [result] = run_all(llm, [one])
    assert outcome(result) == outcome(alone(one))
    assert result.stats.accepted_tokens > 20


def test_autocast_and_gradients_of_the_caller_change_nothing() -> None:
    """Also where a drafter takes in what an aborted request leaves for the cache."""
    off = short_llm(CONTEXT)
    first = ask(70)
    turn = Ask((*first.prompt, *alone(first).token_ids, 9, 8, 7), first.params)
    seen: list[list[int]] = []
    for switched_on in (False, True):
        llm = engine(off, tiny_drafter("dflash", off))
        drafter: Any = core_of(llm).drafter
        modes: list[tuple[bool, bool]] = []
        inner = drafter.extend

        def extend(updates: Sequence[ContextUpdate], inner: Any = inner, modes: Any = modes) -> None:
            modes.append((torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()))
            inner(updates)

        drafter.extend = extend
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=switched_on), torch.enable_grad():
            leaving = Ask(first.prompt, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
            running = leaving.submit(llm)
            while running.request.sequences[0].output_length < 24:
                core_of(llm).step()
            core_of(llm).abort(running.request.request_id)
            [result] = run_all(llm, [turn])
        assert set(modes) == {(False, True)}
        assert outcome(result) == outcome(alone(turn))
        assert result.cached_tokens >= 90
        seen.append(result.stats.accepted_lengths)
    assert seen[0] == seen[1]


def test_the_drafter_fails_where_the_output_ends() -> None:
    """The output is complete; what the cache then lacks of the drafter's entries is made up for later."""
    one = ask(70, max_tokens=1)
    llm = build(one)
    drafter: Any = core_of(llm).drafter
    inner = drafter.extend

    def extend(updates: Sequence[ContextUpdate]) -> None:
        if drafter.failing:
            raise ArithmeticError("lost")
        inner(updates)

    drafter.extend, drafter.failing = extend, False
    long = ask(50, 1, 90)
    running, ending = long.submit(llm), ask(20, 3, 9).submit(llm)
    core = core_of(llm)
    while ending.request.sequences[0].output_length < 6:
        core.step()
    drafter.failing = True
    assert core.abort(ending.request.request_id)
    drafter.failing = False
    step_until_done(llm)
    assert outcome(running.result) == outcome(alone(long))
    assert_goes_on(llm, one, long, ask(20, 3, 9))


def test_a_bad_grammar_is_refused_at_the_door() -> None:
    one = ask(10)
    llm = build(one)
    running = one.submit(llm)
    core_of(llm).step()
    for bad in (StructuredOutputs(regex="(unclosed"), StructuredOutputs(json={"type": "no such type"})):
        with pytest.raises(RequestError):
            ask(5, structured_outputs=bad).submit(llm)
    step_until_done(llm)
    assert outcome(running.result) == outcome(alone(one))
    assert_clean(llm)


@pytest.mark.parametrize("n", [1, 3])
def test_a_grammar_that_leaves_nothing_to_choose(n: int) -> None:
    """Complete after three characters, and four tokens demanded: this request alone fails, while it runs."""
    other = ask(40, 1)
    bad = ask(
        12, 2, 10, min_tokens=8, n=n, temperature=1.0, structured_outputs=StructuredOutputs(regex="abc")
    )
    llm = build(other)
    running, beside = bad.submit(llm), other.submit(llm)
    step_until_done(llm)
    assert_failed(running, "DP448")
    assert outcome(beside.result) == outcome(alone(other))
    assert_goes_on(llm, other)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_what_the_last_step_brought_to_other_choices_is_told(index: int) -> None:
    one = ask(12, 2, 40, n=3, temperature=1.0, presence_penalty=0.5)
    llm = build(one)
    running = one.submit(llm)
    rules: Any = running.request.sequences[index].rules
    rules.apply = Once(rules.apply, KeyError("lost"), 6)
    step_until_done(llm)
    assert_failed(running, "DP451")
    for choice, whole in zip(running.result.choices, alone(one).choices, strict=True):
        told = [token for event in running.events if event.index == choice.index for token in event.token_ids]
        assert told == choice.token_ids == whole.token_ids[: len(told)]
    assert_goes_on(llm, one)


def test_the_tokenizer_raises_when_a_token_is_committed() -> None:
    asks = [ask(10 + seed, seed) for seed in range(3)]
    llm = build(*asks)
    running = [one.submit(llm) for one in asks]
    text = running[1].request.sequences[0].text
    text.take = Once(text.take, KeyError("no such piece"), 5)  # type: ignore[method-assign]
    step_until_done(llm)
    assert_failed(running[1], "DP451")
    for index in (0, 2):
        assert outcome(running[index].result) == outcome(alone(asks[index]))
    assert_goes_on(llm, *asks)


def test_a_receiver_that_is_gone() -> None:
    asks = [ask(10 + seed, seed) for seed in range(3)]
    llm = build(*asks)
    running = [one.submit(llm) for one in asks]
    running[1].request.deliver = Once(running[1].request.deliver, RuntimeError("loop is closed"), 2)
    step_until_done(llm)
    for index in (0, 2):
        assert outcome(running[index].result) == outcome(alone(asks[index]))
    assert_goes_on(llm, *asks)


@pytest.mark.parametrize("where", ["target", "drafter", "commit", "deliver"])
def test_ctrl_c_in_mid_step(where: str) -> None:
    asks = [ask(30 + seed, seed) for seed in range(2)]
    llm = build(*asks)
    running = [one.submit(llm) for one in asks]
    core = core_of(llm)
    runner: Any = core._runner
    undo = dict(runner.__dict__)
    if where == "target":
        with_forward(llm, lambda inner: Once(inner, KeyboardInterrupt(), 3))
    elif where == "drafter":
        drafter: Any = core.drafter
        drafter.propose = Once(drafter.propose, KeyboardInterrupt(), 2)
    elif where == "commit":
        runner._accept = Once(runner._accept, KeyboardInterrupt(), 4)
    else:
        running[0].request.deliver = Once(running[0].request.deliver, KeyboardInterrupt(), 3)
    with pytest.raises(KeyboardInterrupt):
        step_until_done(llm)
    assert core.unfinished == 0
    for one in running:
        assert one.events[-1].finished
        assert one.result.finish_reason == "abort"
    runner.__dict__.clear()
    runner.__dict__.update(undo)
    assert_goes_on(llm, *asks)


def test_ctrl_c_in_generate_leaves_nothing_running() -> None:
    asks = [ask(30 + seed, seed) for seed in range(4)]
    llm = build(*asks, max_num_seqs=2)
    with_forward(llm, lambda inner: Once(inner, KeyboardInterrupt(), 3))
    with pytest.raises(KeyboardInterrupt):
        llm.generate([list(one.prompt) for one in asks], [one.params for one in asks])
    core_of(llm).step()
    assert_goes_on(llm, *asks)


def test_generate_gives_the_others_results_with_the_error() -> None:
    good, bad = ask(10), ask(9, 1, min_tokens=8, structured_outputs=StructuredOutputs(regex="abc"))
    llm = build(good)
    with pytest.raises(RequestError) as caught:
        llm.generate([list(bad.prompt), list(good.prompt)], [bad.params, good.params])
    assert caught.value.code == "DP448"
    assert outcome(caught.value.results[1]) == outcome(alone(good))


def test_a_stream_left_early_and_one_never_read() -> None:
    one = ask(20, 0, 60)
    llm = build(one)
    never = llm.stream(list(one.prompt), one.params)
    stream = llm.stream(list(one.prompt), one.params)
    next(stream)
    next(stream)
    assert core_of(llm).unfinished == 1
    stream.close()  # type: ignore[attr-defined]
    del never
    assert_goes_on(llm, one)


def test_several_threads_generate_and_stream_at_once() -> None:
    asks = [ask(15 + seed, seed, n=1 + seed % 2, temperature=0.8) for seed in range(6)]
    llm = build(*asks, max_num_seqs=5, blocks=8)
    results: dict[int, Any] = {}

    def work(index: int) -> None:
        one = asks[index]
        if index % 3 == 0:
            results[index] = list(llm.stream(list(one.prompt), one.params))[-1].result
        elif index % 3 == 1:
            results[index] = llm.generate(list(one.prompt), one.params)[0]
        else:
            stream = llm.stream(list(one.prompt), one.params)
            next(stream)
            stream.close()  # type: ignore[attr-defined]

    threads = [Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in (0, 1, 3, 4):
        assert outcome(results[index]) == outcome(alone(asks[index]))
    assert_clean(llm)


def test_a_request_too_long_fails_alone() -> None:
    one = ask(10)
    llm = build(one)
    running = one.submit(llm)
    with pytest.raises(RequestError) as caught:
        ask(256, 5).submit(llm)
    assert caught.value.code == "DP402"
    step_until_done(llm)
    assert outcome(running.result) == outcome(alone(one))
