"""`AsyncEngine` under many streams: nothing lost, nothing wrong, nothing leaked; and what it says of its health."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from draftproof import LLM, AsyncEngine, SamplingParams
from draftproof.engine import EngineOptions
from support.llms import make_drafter, tiny_llm
from support.tiny import random_tokens

STREAMS = 64


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(work, 120)

    return asyncio.run(bounded())


def drafted() -> LLM:
    options = EngineOptions(max_num_seqs=24)
    return tiny_llm().with_drafter(make_drafter(tiny_llm(), "dflash", 8), draft_mode="auto", options=options)


def params(index: int, expected: list[int] | None = None) -> SamplingParams:
    own: dict[str, Any] = [{}, {"draft_length": 0}, {"draft_length": 4}, {"prediction": expected}][index % 4]
    return SamplingParams(temperature=0.9, seed=index, max_tokens=10 + index % 23, ignore_eos=True, **own)


def test_many_streams_and_random_aborts() -> None:
    llm = drafted()
    prompts = [random_tokens(3 + index % 37, seed=index).tolist() for index in range(STREAMS)]
    plain = tiny_llm().generate(prompts, [params(index) for index in range(STREAMS)])
    alone = [one.token_ids for one in plain]
    chance = random.Random(3)
    leaves = [chance.randrange(1, 8) if chance.random() < 0.3 else None for _ in range(STREAMS)]

    async def one(engine: AsyncEngine, index: int) -> tuple[list[int], str]:
        await asyncio.sleep(chance.random() * 0.2)
        stream = await engine.add_request(prompts[index], params(index, alone[index]))
        tokens: list[int] = []
        events = 0
        async for event in stream:
            tokens += event.token_ids
            events += 1
            if events == leaves[index]:
                await stream.aclose()
            if event.result is not None:
                assert event.result.token_ids == tokens
                assert stream.first_event_time is not None
                assert stream.first_event_time <= event.time <= time.monotonic()
                return tokens, event.result.finish_reason
        raise AssertionError("no last event")

    async def work() -> list[tuple[list[int], str]]:
        async with AsyncEngine(llm) as engine:
            came = await asyncio.gather(*(one(engine, index) for index in range(STREAMS)))
            assert engine.healthy
            assert engine.running == engine.waiting == 0
            return came

    for (tokens, reason), expected in zip(run(work()), alone, strict=True):
        assert tokens == (expected if reason == "length" else expected[: len(tokens)])
    assert llm.metrics.free_blocks == llm.metrics.blocks


def test_a_step_wakes_the_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = drafted()

    async def work() -> tuple[int, int, int]:
        loop, woken = asyncio.get_running_loop(), 0
        wake = loop.call_soon_threadsafe

        def counting(callback: Any, *args: Any, **more: Any) -> Any:
            nonlocal woken
            woken += getattr(callback, "__name__", "") == "_hand_out"
            return wake(callback, *args, **more)

        async with AsyncEngine(llm) as engine:
            streams = [await engine.add_request([5, 6, 7 + i], params(4 * i)) for i in range(12)]
            monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
            before = engine.metrics.steps
            events = 0
            for stream in streams:
                async for _ in stream:
                    events += 1
            return woken, engine.metrics.steps - before, events

    woken, steps, events = run(work())
    assert woken <= steps + 1
    assert events > 2 * woken


def test_a_step_that_fails_as_a_whole_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = drafted()
    step, failures = llm.loop.step, 3

    def failing(*args: Any, **more: Any) -> bool:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("broken on purpose")
        return step(*args, **more)

    async def work() -> list[int]:
        monkeypatch.setattr(llm.loop, "step", failing)
        async with AsyncEngine(llm) as engine:
            stream = await engine.add_request([5, 6, 7], params(0))
            result = await stream.result()
            assert engine.healthy
            return result.token_ids

    assert run(work()) == tiny_llm().generate([5, 6, 7], params(0))[0].token_ids


def test_a_hanging_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        engine = AsyncEngine(drafted())
        assert engine.healthy
        monkeypatch.setattr("draftproof.engine.async_engine.STUCK_AFTER", 0.0)
        engine._step_began = time.monotonic() - 1
        assert engine.last_step_age >= 1
        assert not engine.healthy
        engine._step_began = None
        assert engine.healthy
        await engine.close()
        assert not engine.healthy

    run(work())
