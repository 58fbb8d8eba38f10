"""What the routes of a server share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

from draftproof.engine import LLM, AsyncEngine
from draftproof.errors import ServerError
from draftproof.server.admission import Admission
from draftproof.server.metrics import ServerMetrics
from draftproof.server.settings import ServerSettings

if TYPE_CHECKING:
    from draftproof.server.reasoning import ReasoningFormat
    from draftproof.server.tools.formats import ToolFormat
    from draftproof.server.tracing import Tracing


@dataclass
class ServerState:
    """One model, and everything around it.

    Attributes:
        engine, llm: what answers.
        settings: the operator's.
        admission: who is let in.
        metrics: for Prometheus.
        tools: how this model calls functions; None where it has no chat template.
        reasoning: how it marks its thoughts; None where it has none.
        fingerprint: stands for everything that decides about the text of a seed.
        started: Unix time, seconds.
        tracing: makes spans; None where nobody wants them.
    """

    engine: AsyncEngine
    llm: LLM
    settings: ServerSettings
    admission: Admission
    metrics: ServerMetrics
    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    fingerprint: str
    started: int
    tracing: Tracing | None = None

    @property
    def model_name(self) -> str:
        """The name that is reported."""
        names = self.settings.served_model_names
        return names[0] if names else self.llm.target.name

    def check_model(self, name: object) -> None:
        """Whether a request's `model` is the one there is.

        Raises:
            ServerError: DP600.
        """
        names = self.settings.served_model_names or (self.llm.target.name,)
        if name not in names:
            raise ServerError(
                "DP600", f"model {str(name)[:100]!r} is not served here; there is {', '.join(names)}", "model"
            )


def fingerprint_of(llm: LLM, version: str) -> str:
    """OpenAI's `system_fingerprint`: the same text for a seed is to be expected while it stays the same."""
    target = llm.target
    said = "|".join((version, target.name, str(target.dtype), str(target.device), type(target).__name__))
    return "fp_" + hashlib.sha256(said.encode()).hexdigest()[:12]


def server_of(request: Request) -> ServerState:
    """The state of the app that a request came to."""
    state: ServerState = request.app.state.server
    return state
