"""The log: one JSON object a line, each with the id of the request it belongs to. Of what people ask and are answered it holds
nothing, unless the operator wants it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TextIO

ACCESS = "draftproof.access"
_FIELDS = "draftproof_fields"


@dataclass
class RequestNote:
    """What is worth a line about a request; filled in while it runs.

    Attributes:
        id: of the request, as in the header ``x-request-id``.
        key: short hash of the caller's API key.
        code: of the error it was refused with.
        prompt_tokens, completion_tokens: of what finished.
        body: text of the request's body, where prompts are to be logged.
    """

    id: str
    key: str = "-"
    code: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    body: str | None = None


current: ContextVar[RequestNote | None] = ContextVar("draftproof_request", default=None)
"""The note of the request that the running task works for."""


def note_of(scope: MutableMapping[str, Any]) -> RequestNote:
    """The note of a request by its ASGI scope; a new one where no middleware has made one."""
    state = scope.setdefault("state", {})
    note = state.get("note")
    if not isinstance(note, RequestNote):
        note = state["note"] = RequestNote("-")
    return note


def log_fields(logger: logging.Logger, message: str, fields: dict[str, Any]) -> None:
    """A line with fields of its own."""
    logger.info(message, extra={_FIELDS: fields})


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        note = current.get()
        if note is not None:
            line["request_id"] = note.id
        line.update(getattr(record, _FIELDS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def write_logs(level: str, stream: TextIO | None = None) -> None:
    """Send the server's log somewhere.

    Args:
        level: ``"debug"``, ``"info"``, ``"warning"`` or ``"error"``.
        stream: standard error when None.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("draftproof", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
