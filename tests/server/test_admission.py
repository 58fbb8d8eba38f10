"""Who is let in, alone and through HTTP."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import httpx
import pytest

from draftproof.errors import ServerError
from draftproof.server.admission import LONGEST_WAIT, Admission, OverloadedError
from support.serving import drafting_llm, serving


async def refused(admission: Admission, key: str = "a") -> OverloadedError:
    with pytest.raises(OverloadedError) as caught:
        async with admission.enter(key):
            pass
    return caught.value


def test_the_queue_is_bounded_and_places_come_back() -> None:
    async def scenario() -> None:
        admission = Admission(places=2, max_queue=1)
        async with AsyncExitStack() as held:
            for _ in range(3):
                await held.enter_async_context(admission.enter("a"))
            error = await refused(admission)
            assert error.code == "DP604"
            assert 1 <= error.retry_after <= LONGEST_WAIT
            assert admission.inside == 3  # the refused one holds nothing
        assert admission.inside == 0
        async with admission.enter("a"):
            assert admission.inside == 1

    asyncio.run(scenario())


def test_a_place_comes_back_from_a_request_that_fails() -> None:
    async def scenario() -> None:
        admission = Admission(places=1, max_queue=0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with admission.enter("a"):
                    raise ZeroDivisionError
        assert admission.inside == 0

    asyncio.run(scenario())


def test_each_key_has_a_limit_of_its_own() -> None:
    async def scenario() -> None:
        admission = Admission(places=8, max_queue=8, max_concurrent_per_key=1)
        async with admission.enter("a"):
            assert (await refused(admission, "a")).code == "DP605"
            async with admission.enter("b"):
                assert admission.inside == 2
        async with admission.enter("a"):
            pass

    asyncio.run(scenario())


def test_a_queue_inside_the_engine_counts() -> None:
    async def scenario() -> None:
        waiting = 4
        admission = Admission(places=4, max_queue=2, waiting=lambda: waiting)
        async with admission.enter("a"):  # as many as have a place may come in one step
            pass
        waiting = 5
        assert (await refused(admission)).code == "DP604"

    asyncio.run(scenario())


def test_nothing_new_while_it_ends_or_the_engine_hangs() -> None:
    async def scenario() -> None:
        admission = Admission(places=4, max_queue=2)
        async with admission.enter("a"):
            admission.draining = True
            assert (await refused(admission)).code == "DP606"
            assert not await admission.until_empty(0.01)
        assert await admission.until_empty(0.01)
        assert (await refused(Admission(4, 2, healthy=lambda: False))).code == "DP609"

    asyncio.run(scenario())


def test_waiting_for_the_last_one_ends_with_it() -> None:
    async def scenario() -> None:
        admission, leave = Admission(places=4, max_queue=2), asyncio.Event()

        async def one() -> None:
            async with admission.enter("a"):
                await leave.wait()

        running = asyncio.create_task(one())
        await asyncio.sleep(0)
        empty = asyncio.create_task(admission.until_empty(30))
        await asyncio.sleep(0)
        assert not empty.done()
        leave.set()
        assert await empty
        await running

    asyncio.run(scenario())


def test_a_refusal_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(OverloadedError("DP604", "full", 7)))
    assert isinstance(error, ServerError)
    assert (error.code, error.message, error.retry_after) == ("DP604", "full", 7)


def test_overload_is_429_with_retry_after_and_the_others_finish() -> None:
    body = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
    with serving(drafting_llm(None), max_concurrent_per_key=2) as url, ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: httpx.post(url + "/v1/completions", json=body, timeout=60), range(8))
        )
    statuses = sorted(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["error"]["code"] == "DP605"
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
        else:
            assert answer.json()["usage"]["completion_tokens"] == 200
