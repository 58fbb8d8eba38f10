"""A target and a drafter to be examined, and what is known of the target besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.engine import LLM
from draftproof.engine.loading import find_drafter
from draftproof.errors import RequestError
from draftproof.models.loading import read_config
from draftproof.models.registry import resolve_model


@dataclass(frozen=True)
class Pair:
    """What is examined.

    Attributes:
        llm: the target; nothing is drafted with it.
        folder: the drafter's checkpoint.
        drafter: how the user named it.
        config: the target's Transformers config, for its RoPE and its scales; None where there is none.
        reload: loads the target in another precision (one of ``models.loading.DTYPES``); None where that cannot be.
    """

    llm: LLM
    folder: Path
    drafter: str
    config: Any = None
    reload: Callable[[str], LLM] | None = None


def load_pair(
    target: str,
    drafter: str | None,
    *,
    dtype: str = "auto",
    executor: str = "auto",
    trust_remote_code: bool = False,
) -> Pair:
    """A pair from names, folders or hub ids, as `LLM` takes them. The drafter is found, not loaded.

    Raises:
        RequestError: DP540, the drafter is no checkpoint.
        ModelError: the target cannot be found, read or used (DP2xx); nor the drafter's folder.
        DrafterError: there is no such drafter (DP3xx).
    """
    folder = _folder(target, drafter)
    path = resolve_model(target, trust_remote_code=trust_remote_code).path

    def load(precision: str) -> LLM:
        return LLM(
            target,
            dtype=precision,
            executor=executor,
            draft_mode="off",
            trust_remote_code=trust_remote_code,
        )

    config = read_config(path, target, trust_remote_code)
    return Pair(load(dtype), folder, str(drafter), config, load)


def _folder(target: str, drafter: str | None) -> Path:
    found = None if drafter is None else find_drafter(drafter, target)
    if found is None or found == "ngram":
        raise RequestError(
            "DP540",
            f"doctor examines a DFlash checkpoint, and {drafter or 'none'!r} is not one: name its folder or hub id",
        )
    return Path(found)
