"""A real server on a port of its own, around a tiny model, for tests over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from draftproof import LLM, AsyncEngine
from support.live import live
from support.llms import make_drafter, tiny_llm

NAME = "tiny"


def drafting_llm(kind: str | None = "ngram") -> LLM:
    """The tiny model with a drafter, in an engine of its own; ``None``: without one."""
    base = tiny_llm()
    return base.with_drafter(None if kind is None else make_drafter(base, kind, 8))


def apart() -> list[int]:
    """Tokens of single characters that the tokenizer never joins: text of these alone has one tokenisation."""
    text = "@&$%~^"
    ids = list(tiny_llm().tokenizer(text * 2)["input_ids"])
    assert len(ids) == 2 * len(text)
    return sorted(set(ids))


@contextmanager
def serving(llm: LLM, tracing: Any = None, **settings: Any) -> Iterator[str]:
    """The address of a server around `llm`. On leaving, the engine must come to rest with no block held.

    Args:
        llm: what to serve.
        tracing: a `Tracing`, where spans are wanted.
        settings: fields of `ServerSettings`.
    """
    from draftproof.server.app import create_app
    from draftproof.server.settings import ServerSettings

    engine = AsyncEngine(llm)
    try:
        chosen = ServerSettings(**{"served_model_names": (NAME,), **settings})
        with live(create_app(engine, chosen, tracing)) as url:
            yield url
            assert settles(llm), "requests still run, or blocks leaked"
    finally:
        asyncio.run(engine.close())


def settles(llm: LLM, seconds: float = 20) -> bool:
    """Whether the engine comes to rest with every block free."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        metrics = llm.metrics
        if llm.loop.unfinished == 0 and metrics.free_blocks == metrics.blocks:
            return True
        time.sleep(0.02)
    return False
