"""Who takes part in a step: fairness, the token budget, priorities, preemption, choices of one request, aborts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from draftproof import LLM, SamplingParams
from draftproof.engine.scheduler import Scheduler, StepPlan
from draftproof.errors import RequestError
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
)

CONTEXT = 512


def ask(length: int, max_tokens: int = 8, seed: int = 0, **fields: object) -> Ask:
    fields = {"temperature": 0.0, "ignore_eos": True, **fields}
    params = SamplingParams(seed=seed, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
    return Ask(random_prompt(length, random.Random(seed)), params)


def build(drafter: WitnessDrafter | None = None, **sizes: int | bool | None) -> LLM:
    return engine(short_llm(CONTEXT), drafter, **sizes)  # type: ignore[arg-type]


def scheduler_of(llm: LLM) -> Scheduler:
    return core_of(llm)._scheduler


def noting_plans(llm: LLM) -> list[StepPlan]:
    """The engine's plans, as they are made."""
    scheduler, plans = scheduler_of(llm), []
    make = scheduler.plan

    def plan() -> StepPlan:
        plans.append(make())
        return plans[-1]

    scheduler.plan = plan  # type: ignore[method-assign]
    return plans


def ends(llm: LLM, running: list[Running]) -> list[int]:
    """The order in which requests end."""
    order: list[int] = []

    def note(step: int) -> None:
        for index, one in enumerate(running):
            if index not in order and one.events and one.events[-1].finished:
                order.append(index)

    step_until_done(llm, note)
    note(-1)
    return order


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    llm = build(budget=256)
    running = [ask(500, 2).submit(llm), ask(10, 2, seed=1).submit(llm)]
    assert ends(llm, running) == [1, 0]


def test_nobody_is_overtaken_while_waiting() -> None:
    """The second does not fit beside the first; the third would, and waits its turn all the same."""
    llm = build(blocks=8, prefix_caching=False)
    first, second, third = (ask(250, 40), ask(300, 2, 1), ask(5, 2, 2))
    running = [one.submit(llm) for one in (first, second, third)]
    core_of(llm).step()
    assert [s.request for s in scheduler_of(llm).running] == [running[0].request]
    assert [s.request for s in scheduler_of(llm).waiting] == [running[1].request, running[2].request]
    assert ends(llm, running)[0] == 0


def test_priority_goes_first_and_arrival_decides_among_equals() -> None:
    llm = build(max_num_seqs=1)
    running = [ask(5, 3, seed).submit(llm, priority=p) for seed, p in enumerate((0, 0, 1, -1, -1))]
    assert ends(llm, running) == [3, 4, 0, 1, 2]


@pytest.mark.parametrize("budget", [1, 7, 16, 64, 512])
def test_the_token_budget_is_kept(budget: int) -> None:
    llm = build(WitnessDrafter(), budget=budget)
    asks = [ask(20 + 30 * seed, 6, seed) for seed in range(4)]
    for one in asks:
        core_of(llm).drafter.learn(one.prompt, one.alone(short_llm(CONTEXT)))  # type: ignore[union-attr]
    plans, rows = noting_plans(llm), []
    core = core_of(llm)
    for one in asks:
        one.submit(llm)
    while core.unfinished:
        before = core.metrics.rows
        core.step()
        rows.append(core.metrics.rows - before)
    for plan, count in zip(plans, rows, strict=True):
        anchors = sum(chunk.last and chunk.count == 1 for chunk in plan.chunks)
        assert count <= max(budget, anchors + min(16, budget))
        assert all(chunk.count <= budget for chunk in plan.chunks)


def test_decoding_goes_on_at_every_step_while_prompts_fill() -> None:
    llm = build(budget=16)
    decoding = ask(3, 60).submit(llm)
    core_of(llm).step()
    ask(400, 2, 1).submit(llm)
    for _ in range(20):
        before = len(decoding.events)
        core_of(llm).step()
        assert len(decoding.events) == before + 1


def test_prompts_go_on_at_every_step_while_many_decode() -> None:
    llm = build(budget=4)
    for seed in range(6):  # more than the budget
        ask(2, 100, seed).submit(llm)
    core = core_of(llm)
    while len(scheduler_of(llm).running) < 6 or core.metrics.output_tokens < 12:
        core.step()
    late = ask(40, 2, 9).submit(llm)
    for _ in range(40):
        core.step()
    assert late.events
    core.abort(late.request.request_id)


def test_preemption_loses_and_repeats_no_token() -> None:
    """Three outputs that each need most of the pool before they end."""
    asks = [ask(50, 300, seed, temperature=1.0, logprobs=0) for seed in range(3)]
    expected = [outcome(one.alone(short_llm(CONTEXT))) for one in asks]
    drafter = WitnessDrafter()
    for one in asks:
        drafter.learn(one.prompt, one.alone(short_llm(CONTEXT)))
    llm = build(drafter, blocks=9)
    running = [one.submit(llm) for one in asks]
    step_until_done(llm)
    assert core_of(llm).metrics.preemptions > 0
    assert running[0].result.stats.preemptions == 0, "who came first never gives way"
    for one, reference in zip(running, expected, strict=True):
        check_events(one.events)
        assert outcome(one.result) == reference
    assert drafter.checked
    assert_clean(llm)


def test_choices_share_blocks_and_copy_before_writing() -> None:
    llm = build()
    core = core_of(llm)
    running = ask(150, 30, n=4, temperature=1.2).submit(llm)
    core.step()
    tables = [sequence.running_memory.table.blocks for sequence in running.request.sequences]
    assert all(blocks == tables[0] for blocks in tables)
    assert core.memory.cache.num_referenced == 3
    core.step()
    assert len({blocks[2] for blocks in tables}) == 4, "each has its own last block"
    assert all(blocks[:2] == tables[0][:2] for blocks in tables)
    assert core.metrics.block_copies == 3
    step_until_done(llm)
    assert_clean(llm)


def test_choices_are_what_each_seed_gives_as_a_request_of_its_own() -> None:
    llm = build()
    several = ask(30, 20, seed=7, n=4, temperature=1.0)
    [result] = run_all(llm, [several])
    for choice in result.choices:
        single = Ask(
            several.prompt,
            SamplingParams(temperature=1.0, seed=choice.seed, max_tokens=20, ignore_eos=True),
        )
        assert single.alone(short_llm(CONTEXT)).token_ids == choice.token_ids


@pytest.mark.parametrize("max_tokens", [1, 2, 9])
def test_choices_that_end_in_one_step_all_give_their_last_event(max_tokens: int) -> None:
    llm = build()
    running = ask(10, max_tokens, n=3, temperature=1.0).submit(llm)
    step_until_done(llm)
    check_events(running.events)
    assert [event.finish_reason for event in running.events].count("length") == 3
    assert_clean(llm)


def test_more_choices_than_the_engine_runs_at_once() -> None:
    llm = build(max_num_seqs=2)
    with pytest.raises(RequestError) as caught:
        ask(5, n=3).submit(llm)
    assert caught.value.code == "DP443"
    [result] = run_all(llm, [ask(5, n=2, temperature=1.0)])
    assert len(result.choices) == 2


def test_never_more_than_max_num_seqs() -> None:
    llm = build(max_num_seqs=4)
    asks = [ask(5 + seed, 6, seed, n=1 + seed % 3, temperature=1.0) for seed in range(8)]

    def look(step: int) -> None:
        assert len(scheduler_of(llm).running) <= 4

    run_all(llm, asks, look)


def test_who_did_not_fit_keeps_what_the_cache_has_of_it() -> None:
    """Looking whether a request fits must not cost it its cached prefix."""
    llm = build(blocks=8)
    long = ask(300, 2)
    run_all(llm, [long])
    blocker = ask(250, 100, 1)
    blocker.submit(llm)
    core_of(llm).step()
    core_of(llm).step()
    again = long.submit(llm)
    core_of(llm).step()
    assert again.request.sequences[0].memory is None, "it waits"
    step_until_done(llm)
    assert again.result.cached_tokens >= 128, "two blocks were never needed by the other"
    assert_clean(llm)


STAGES: dict[str, Callable[[LLM, Running], bool]] = {
    "waiting": lambda llm, one: one.request.sequences[0].memory is None,
    "filling": lambda llm, one: (
        one.request.sequences[0].memory is not None and 0 < one.request.sequences[0].memory.kv.length < 100
    ),
    "decoding": lambda llm, one: one.request.sequences[0].output_length == 5,
    "forked": lambda llm, one: one.request.sequences[2].output_length == 3,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_an_abort_frees_everything(stage: str, prefix_caching: bool) -> None:
    llm = build(WitnessDrafter(), budget=16, max_num_seqs=4, prefix_caching=prefix_caching)
    core = core_of(llm)
    before = ask(6, 8, 3, n=4, temperature=1.0).submit(llm) if stage == "waiting" else None
    neighbour = ask(7, 30, 4)
    expected = outcome(neighbour.alone(short_llm(CONTEXT)))
    beside = neighbour.submit(llm) if stage != "waiting" else None
    one = ask(130, 40, 5, n=3, temperature=1.0).submit(llm)
    core.step()
    for _ in range(200):
        if STAGES[stage](llm, one):
            break
        core.step()
    else:
        raise AssertionError(f"never {stage}")
    assert core.abort(one.request.request_id)
    assert not core.abort(one.request.request_id)
    check_events(one.events)
    assert {choice.finish_reason for choice in one.result.choices} == {"abort"}
    step_until_done(llm)
    for other in (before, beside):
        if other is not None:
            check_events(other.events)
    if beside is not None:
        assert outcome(beside.result) == expected
    assert_clean(llm)


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    llm = build()
    ask(5, 3).submit(llm, request_id="mine")
    with pytest.raises(RequestError) as caught:
        ask(6, 3).submit(llm, request_id="mine")
    assert caught.value.code == "DP442"
    step_until_done(llm)
    ask(6, 3).submit(llm, request_id="mine")
    step_until_done(llm)
