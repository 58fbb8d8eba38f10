"""Every explanation, by code and by name. One file a family."""

from __future__ import annotations

from draftproof.errors.catalog import (
    audit,
    bench,
    doctor,
    drafters,
    engine,
    export,
    models,
    requests,
    server,
    server_chat,
    server_engine,
    server_requests,
    server_tools,
    targets,
    training,
    training_data,
    training_run,
    verify,
)
from draftproof.errors.explanation import Explanation

ALL: tuple[Explanation, ...] = (
    *verify.EXPLANATIONS,
    *models.EXPLANATIONS,
    *targets.EXPLANATIONS,
    *drafters.EXPLANATIONS,
    *requests.EXPLANATIONS,
    *engine.EXPLANATIONS,
    *audit.EXPLANATIONS,
    *bench.EXPLANATIONS,
    *export.EXPLANATIONS,
    *doctor.EXPLANATIONS,
    *training.EXPLANATIONS,
    *training_data.EXPLANATIONS,
    *training_run.EXPLANATIONS,
    *server.EXPLANATIONS,
    *server_requests.EXPLANATIONS,
    *server_tools.EXPLANATIONS,
    *server_chat.EXPLANATIONS,
    *server_engine.EXPLANATIONS,
)
_INDEX: dict[str, Explanation] = {key.lower(): entry for entry in ALL for key in (entry.code, entry.name)}


def explanation(code: str) -> Explanation:
    """The explanation for a code (`DP105`) or a name (`logit-row-count-mismatch`), whatever the case.

    Raises:
        KeyError: no error has that code or name.
    """
    return _INDEX[code.strip().lower()]
