"""The engine's refusals, with the name of the field under which the client sent what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

from draftproof.errors import RequestError, ServerError

_BY_CODE: Mapping[str, str] = {
    "DP401": "prompt",
    "DP402": "prompt",
    "DP403": "prompt",
    "DP404": "prompt",
    "DP405": "messages",
    "DP406": "messages",
    "DP443": "n",
    "DP444": "structured_outputs",
    "DP445": "structured_outputs.json",
    "DP446": "structured_outputs.regex",
    "DP447": "structured_outputs.grammar",
    "DP448": "structured_outputs",
    "DP449": "structured_outputs",
}
_FIELD = re.compile(r"(?:a key of )?([a-z_]+(?:\.[a-z_]+)*)((?:\[\d+\])*)")


def renamed(error: RequestError, fields: frozenset[str], names: Mapping[str, str]) -> ServerError:
    """A refusal of the engine as the client should read it.

    Args:
        error: raised for a prompt or a sampling field.
        fields: names that the request's body may have.
        names: the engine's names to the client's, where they differ (``max_tokens`` was sent as ``max_completion_tokens``).

    Returns:
        The same code with `param` set, and the client's name at the front of the message.
    """
    said = getattr(error, "param", None)
    found = _FIELD.match(error.message)
    name, indices = (found[1], found[2]) if found else ("", "")
    if name.split(".")[0] not in fields and name not in names:
        param = said or _BY_CODE.get(error.code)
        return ServerError(error.code, error.message, names.get(param, param) if param else None)
    theirs = names.get(name, name)
    message = error.message.replace(name, theirs, 1) if theirs != name else error.message
    return ServerError(error.code, message, said or theirs + indices.replace("[", ".").replace("]", ""))
