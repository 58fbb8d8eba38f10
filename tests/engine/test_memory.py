"""The pool of both models' keys and values: what is restored, what is recomputed, what is given back."""

from __future__ import annotations

import random

import pytest

from draftproof import LLM, SamplingParams
from draftproof.engine import EngineOptions
from draftproof.engine.memory import bytes_per_block
from draftproof.errors import RequestError
from draftproof.models.drafters.base import Drafter
from support.engines import (
    Ask,
    Running,
    WitnessDrafter,
    assert_clean,
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


def ask(prompt: tuple[int, ...] | int, max_tokens: int = 20, seed: int = 0, **fields: object) -> Ask:
    tokens = random_prompt(prompt, random.Random(seed)) if isinstance(prompt, int) else prompt
    fields = {"temperature": 0.0, "ignore_eos": True, **fields}
    return Ask(tokens, SamplingParams(seed=seed, max_tokens=max_tokens, **fields))  # type: ignore[arg-type]


def build(drafter: Drafter | None, **sizes: int | bool | None) -> LLM:
    return engine(short_llm(CONTEXT), drafter, **sizes)  # type: ignore[arg-type]


def taught(*asks: Ask, period: int = 4) -> WitnessDrafter:
    drafter = WitnessDrafter(period=period)
    for one in asks:
        drafter.learn(one.prompt, one.alone(short_llm(CONTEXT)))
    return drafter


def finished(llm: LLM, one: Ask) -> Running:
    running = one.submit(llm)
    step_until_done(llm)
    return running


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "ngram", "witness"])
@pytest.mark.parametrize("length", [10, 63, 64, 65, 100, 128])
def test_a_second_turn_computes_only_what_is_new(kind: str, length: int) -> None:
    """In both models: what the drafter accepts on a hit is what it accepts on a miss."""
    off = short_llm(CONTEXT)
    first = ask(length, 21)
    turn = ask((*first.prompt, *first.alone(off).token_ids, *random_prompt(9, random.Random(8))), 30)
    drafter = taught(first, turn) if kind == "witness" else tiny_drafter(kind, off)
    llm = build(drafter)
    finished(llm, first)
    before = core_of(llm).metrics
    hit = finished(llm, turn).result
    after = core_of(llm).metrics
    miss = finished(build(drafter), turn).result
    known = length + 20  # the last token of an answer is processed by nobody
    assert hit.cached_tokens == known
    assert after.cached_prompt_tokens - before.cached_prompt_tokens == known
    assert after.computed_prompt_tokens - before.computed_prompt_tokens == len(turn.prompt) - known
    assert miss.cached_tokens == 0
    assert outcome(hit) == outcome(miss) == outcome(turn.alone(off))
    assert hit.stats.accepted_lengths == miss.stats.accepted_lengths
    if isinstance(drafter, WitnessDrafter):
        assert max(hit.stats.accepted_lengths) == 3
        assert drafter.checked > 0
    assert_clean(llm)


def test_blocks_without_this_drafters_entries_are_computed_anew() -> None:
    """A drafter that comes later finds the target's entries in the cache, and none of its own: not zeros, but features."""
    first = ask(150)
    llm = build(taught(first))
    core = core_of(llm)
    expected = outcome(finished(llm, first).result)
    other = taught(first)
    core.memory.use_drafter(other)
    core.drafter = core._runner.drafter = other
    again = finished(llm, first).result
    assert again.cached_tokens == 0
    assert outcome(again) == expected
    assert other.checked > 0
    assert finished(llm, first).result.cached_tokens == 149


def test_cached_blocks_of_a_time_without_drafter() -> None:
    first = ask(150)
    llm = build(taught(first))
    core, drafter = core_of(llm), core_of(llm).drafter
    core.memory.use_drafter(None)
    core.drafter = core._runner.drafter = None
    expected = outcome(finished(llm, first).result)
    assert finished(llm, first).result.cached_tokens == 149, (
        "the target's entries are enough without a drafter"
    )
    core.memory.use_drafter(drafter)
    core.drafter = core._runner.drafter = drafter
    again = finished(llm, first).result
    assert again.cached_tokens == 0
    assert outcome(again) == expected


def test_the_drafter_cannot_be_replaced_while_something_runs() -> None:
    llm = build(WitnessDrafter())
    running = ask(5).submit(llm)
    core_of(llm).step()
    with pytest.raises(RuntimeError):
        core_of(llm).memory.use_drafter(None)
    core_of(llm).abort(running.request.request_id)


def test_a_pool_too_small_for_one_context() -> None:
    off = short_llm(CONTEXT)
    each = bytes_per_block(off.target, None)
    with pytest.raises(RequestError) as caught:
        off.with_drafter(None, options=EngineOptions(kv_cache_memory=4 * each - 1))
    assert caught.value.code == "DP441"
    assert str(4 * each) in str(caught.value)
    off.with_drafter(None, options=EngineOptions(kv_cache_memory=4 * each))


@pytest.mark.parametrize("length", [61, 62, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("period", [1, 2, 7, 0])
def test_rollback_at_block_edges_leaks_nothing(length: int, period: int) -> None:
    """Drafts reach into a block that a rejection makes unnecessary: it goes back at once."""
    one = ask(length, 24)
    llm = build(taught(one, period=period), prefix_caching=length % 2 == 0)
    core = core_of(llm)
    running = one.submit(llm)

    def look(step: int) -> None:
        for sequence in core._scheduler.running:
            memory = sequence.running_memory
            assert len(memory.table.blocks) == -(-memory.kv.length // 64)
        core.memory.cache.check([s.running_memory.table for s in core._scheduler.running])

    step_until_done(llm, look)
    assert outcome(running.result) == outcome(one.alone(short_llm(CONTEXT)))
    assert_clean(llm)


@pytest.mark.parametrize("drafter", [None, "witness"])
@pytest.mark.parametrize("length", [191, 192, 193, 254, 255])
def test_a_prompt_that_fills_the_pool(drafter: str | None, length: int) -> None:
    """In a pool of exactly one context, several times over, with something cached in the way."""
    asks = [ask(length, 64, seed) for seed in range(3)]
    llm = build(taught(*asks) if drafter else None, blocks=4)
    results = run_all(llm, [asks[0], asks[1], asks[0], asks[2], asks[2]])
    off = short_llm(CONTEXT)
    expected = [outcome(one.alone(off)) for one in asks]
    assert [outcome(r) for r in results] == [expected[0], expected[1], expected[0], expected[2], expected[2]]
    assert all(r.finish_reason == "length" and len(r.token_ids) == min(64, 256 - length) for r in results)


def test_choices_in_a_pool_of_one_context() -> None:
    """All choices grow to where they cannot be in memory together."""
    one = ask(60, 190, n=4, temperature=1.0)
    drafter = taught(one)
    llm = build(drafter, blocks=4)
    [result] = run_all(llm, [one])
    assert outcome(result) == outcome(one.alone(short_llm(CONTEXT)))
    assert core_of(llm).metrics.preemptions > 0
    assert drafter.checked > 0


def test_a_stop_inside_a_block_leaves_the_cache_right() -> None:
    """Keys and values of accepted tokens behind the stop are there; they must not be taken for something else's."""
    off = short_llm(CONTEXT)
    first = ask(40, 30)
    script = first.alone(off).token_ids
    drafter = taught(first, period=0)
    short = Ask(
        first.prompt,
        SamplingParams(temperature=0.0, seed=0, max_tokens=30, stop_token_ids=[script[9]], ignore_eos=True),
    )
    llm = build(drafter)
    stopped = finished(llm, short).result
    end = script.index(script[9]) + 1
    assert (stopped.token_ids, stopped.finish_reason) == (script[:end], "stop")
    other = ask((*first.prompt, *script[:end], *random_prompt(30, random.Random(4))), 20)
    result = finished(llm, other).result
    assert outcome(result) == outcome(other.alone(off))
    assert end + 39 <= result.cached_tokens <= end + 40


def test_prompt_logprobs_come_whole_after_a_preemption_in_mid_prompt() -> None:
    off = short_llm(CONTEXT)
    one = ask(150, 10, prompt_logprobs=1, logprobs=1)
    llm = build(WitnessDrafter(), budget=16)
    core = core_of(llm)
    running = one.submit(llm)
    for turn in range(4):
        for _ in range(turn + 1):
            core.step()
        core._scheduler.preempt(core._scheduler.running[0])
        core._scheduler.max_num_batched_tokens = 11 + turn  # chunks that end elsewhere than before
    step_until_done(llm)
    assert outcome(running.result) == outcome(one.alone(off))
    assert_clean(llm)


@pytest.mark.parametrize("drafter", ["dflash", "ngram"])
def test_the_end_of_the_models_context(drafter: str) -> None:
    """The last block must not reach beyond the positions there are."""
    off = short_llm(512)
    one = ask((random_prompt(7, random.Random(1)) * 80)[:490], 64)
    [result] = run_all(engine(off, tiny_drafter(drafter, off)), [one])
    assert (result.finish_reason, len(result.token_ids)) == ("length", 22)
    assert outcome(result) == outcome(one.alone(off))
    assert result.stats.drafted_tokens > 0


def test_without_prefix_caching_nothing_is_found() -> None:
    llm = build(WitnessDrafter(), prefix_caching=False)
    for _ in range(2):
        assert finished(llm, ask(100)).result.cached_tokens == 0
    assert core_of(llm).metrics.prefix_hit_tokens == 0
