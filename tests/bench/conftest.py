"""What the benchmark's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from draftproof import LLM
from support.llms import make_drafter, tiny_llm


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measured costs go to a folder of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTPROOF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def plain() -> LLM:
    """A tiny target that is never drafted for."""
    return tiny_llm()


@pytest.fixture(scope="session")
def llm(plain: LLM) -> LLM:
    """The same with a random drafter: always a draft, nearly never a good one."""
    return plain.with_drafter(make_drafter(plain, "dflash", 4), draft_mode="off")
