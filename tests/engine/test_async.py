"""`AsyncEngine`: streams, aborts, drains, and keeps one request's trouble from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from draftproof import LLM, AsyncEngine, SamplingParams
from draftproof.engine import RequestResult
from draftproof.errors import EngineError, RequestError
from support.llms import make_drafter, tiny_llm
from support.tiny import random_tokens

PROMPTS = [random_tokens(3 + 5 * i, seed=i).tolist() for i in range(12)]


def params(index: int, **options: Any) -> SamplingParams:
    fields = {"temperature": 0.9, "seed": index, "max_tokens": 10 + index, "ignore_eos": True}
    return SamplingParams(**{**fields, **options})


def drafted() -> LLM:
    return tiny_llm().with_drafter(make_drafter(tiny_llm(), "dflash", 8))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(work, 120)

    return asyncio.run(bounded())


def no_block_is_held(llm: LLM) -> bool:
    return llm.metrics.free_blocks == llm.metrics.blocks


def test_concurrent_streams_give_what_each_gives_alone() -> None:
    llm = drafted()
    alone = [tiny_llm().generate(p, params(i))[0].token_ids for i, p in enumerate(PROMPTS)]

    async def one(engine: AsyncEngine, index: int) -> list[int]:
        stream = await engine.add_request(PROMPTS[index], params(index))
        return [token async for event in stream for token in event.token_ids]

    async def work() -> list[list[int]]:
        async with AsyncEngine(llm) as engine:
            return await asyncio.gather(*(one(engine, index) for index in range(len(PROMPTS))))

    assert run(work()) == alone
    assert no_block_is_held(llm)
    assert llm.metrics.steps < sum(map(len, alone))  # they shared steps


def test_abort_ends_one_stream_alone() -> None:
    llm = drafted()
    expected = tiny_llm().generate(PROMPTS[3], params(3, max_tokens=60))[0].token_ids

    async def work() -> tuple[RequestResult, RequestResult]:
        async with AsyncEngine(llm) as engine:
            lives = await engine.add_request(PROMPTS[3], params(3, max_tokens=60))
            dies = await engine.add_request(PROMPTS[4], params(4, max_tokens=400), request_id="dies")
            async for _ in dies:
                engine.abort("dies")
            return await lives.result(), await dies.result()

    lived, died = run(work())
    assert lived.token_ids == expected
    assert (died.finish_reason, died.error) == ("abort", None)
    assert 1 <= len(died.token_ids) < 400
    assert no_block_is_held(llm)


def test_bad_requests_fail_alone_and_before_they_enter() -> None:
    llm = drafted()

    async def work() -> tuple[list[str], RequestResult]:
        codes = []
        async with AsyncEngine(llm) as engine:
            good = await engine.add_request(PROMPTS[5], params(5), request_id="good")
            for prompt, options in (
                ([], params(0)),
                (PROMPTS[0], params(0, n=1000)),
                (list(range(3, 300)) * 3, params(0)),
            ):
                with pytest.raises(RequestError) as caught:
                    await engine.add_request(prompt, options)
                codes.append(caught.value.code)
            with pytest.raises(RequestError) as caught:
                await engine.add_request(PROMPTS[1], params(1, max_tokens=300), request_id="good")
            codes.append(caught.value.code)
            return codes, await good.result()

    codes, good = run(work())
    assert codes == ["DP401", "DP443", "DP402", "DP442"]
    assert good.token_ids == tiny_llm().generate(PROMPTS[5], params(5))[0].token_ids


def test_drain_lets_running_requests_end_and_takes_no_more() -> None:
    llm = drafted()

    async def work() -> tuple[bool, str, int]:
        engine = AsyncEngine(llm)
        stream = await engine.add_request(PROMPTS[2], params(2, max_tokens=40))
        ended = await engine.drain()
        with pytest.raises(EngineError) as caught:
            await engine.add_request(PROMPTS[2], params(2))
        result = await stream.result()
        await engine.close()
        return ended, caught.value.code, len(result.token_ids)

    assert run(work()) == (True, "DP452", 40)


def test_drain_with_a_time_limit_aborts_what_is_left() -> None:
    llm = drafted()

    async def work() -> tuple[bool, str]:
        engine = AsyncEngine(llm)
        stream = await engine.add_request(PROMPTS[2], params(2, max_tokens=490))
        ended = await engine.drain(timeout=0)
        result = await stream.result()
        await engine.close()
        return ended, result.finish_reason

    assert run(work()) == (False, "abort")
    assert no_block_is_held(llm)


def test_a_receiver_whose_loop_is_gone_harms_nobody() -> None:
    llm = drafted()

    async def leave() -> AsyncEngine:
        engine = AsyncEngine(llm)
        await engine.add_request(PROMPTS[6], params(6, max_tokens=300))
        return engine

    engine = asyncio.run(leave())  # its loop closes while the request runs

    async def work() -> list[int]:
        result = await (await engine.add_request(PROMPTS[7], params(7))).result()
        await engine.close()
        return result.token_ids

    assert run(work()) == tiny_llm().generate(PROMPTS[7], params(7))[0].token_ids
    assert no_block_is_held(llm)


def test_the_llm_may_be_used_at_the_same_time() -> None:
    llm = drafted()
    expected = [tiny_llm().generate(p, params(i))[0].token_ids for i, p in enumerate(PROMPTS[:4])]

    async def work() -> tuple[list[int], list[RequestResult]]:
        async with AsyncEngine(llm) as engine:
            stream = await engine.add_request(PROMPTS[0], params(0))
            direct = await asyncio.to_thread(
                llm.generate, PROMPTS[1:4], [params(i) for i in range(1, 4)], progress=False
            )
            return (await stream.result()).token_ids, direct

    streamed, direct = run(work())
    assert [streamed, *(one.token_ids for one in direct)] == expected


def test_choices_stream_by_index() -> None:
    llm = drafted()

    async def work() -> tuple[dict[int, list[int]], RequestResult]:
        tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
        async with AsyncEngine(llm) as engine:
            stream = await engine.add_request(PROMPTS[8], params(8, n=3))
            async for event in stream:
                tokens[event.index] += event.token_ids
            return tokens, await stream.result()

    tokens, result = run(work())
    assert [choice.token_ids for choice in result.choices] == [tokens[0], tokens[1], tokens[2]]
    for choice in result.choices:
        alone = tiny_llm().generate(PROMPTS[8], params(choice.seed, max_tokens=18))[0]
        assert choice.token_ids == alone.token_ids
