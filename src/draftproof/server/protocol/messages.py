"""The messages of a conversation: checked field by field, content made a plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from draftproof.errors import ServerError

ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "system": ("role", "content", "name"),
    "developer": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": (
        "role",
        "content",
        "name",
        "refusal",
        "tool_calls",
        "reasoning_content",
        "annotations",
    ),
    "tool": ("role", "content", "name", "tool_call_id"),
}
_NEVER = {
    "audio": "only text is taken",
    "function_call": "use tool_calls",
}
"""Fields of an answer that a client sends back with null in them."""


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """A conversation in the form in which templates take it.

    Content parts are joined by newlines; the role ``developer`` becomes ``system``, which templates know; null fields are left
    out. Tool calls keep OpenAI's form (arguments as JSON text).

    Raises:
        ServerError: DP631, DP632, DP633, DP635 or DP637, naming the field (``messages.2.content.0.type``).
    """
    if not isinstance(messages, list) or not messages:
        _refuse("messages", "a list of at least one message", messages)
    return [_message(f"messages.{index}", message) for index, message in enumerate(messages)]


def _message(at: str, message: object) -> dict[str, Any]:
    if not isinstance(message, dict):
        _refuse(at, "an object with role and content", message)
    given = {name: value for name, value in message.items() if value is not None}
    if "role" not in given:
        _missing(f"{at}.role")
    role = given["role"]
    if not isinstance(role, str) or role not in ROLES:
        _refuse(f"{at}.role", f"one of {', '.join(ROLES)}", role)
    for name in given:
        if name in _NEVER:
            raise ServerError("DP633", f"{at}.{name} is not supported: {_NEVER[name]}", f"{at}.{name}")
        if name not in _FIELDS[role]:
            raise ServerError(
                "DP632",
                f"{at}.{name} is not a field of a {role} message: {', '.join(_FIELDS[role])}",
                f"{at}.{name}",
            )
    return _assistant(at, given) if role == "assistant" else _other(at, role, given)


def _other(at: str, role: str, given: dict[str, Any]) -> dict[str, Any]:
    if "content" not in given:
        _missing(f"{at}.content")
    message = {"role": "system" if role == "developer" else role, "content": _content(at, given["content"])}
    if role == "tool" and "tool_call_id" not in given:
        _missing(f"{at}.tool_call_id")
    return message | _texts(at, given, "name", "tool_call_id")


def _assistant(at: str, given: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    if "content" in given:
        message["content"] = _content(at, given["content"], refusals=True)
    elif "refusal" in given:
        message["content"] = _text(f"{at}.refusal", given["refusal"])
    elif "tool_calls" not in given:
        _missing(f"{at}.content")
    message |= _texts(at, given, "name", "reasoning_content")
    if given.get("tool_calls") != [] and "tool_calls" in given:
        message["tool_calls"] = _tool_calls(f"{at}.tool_calls", given["tool_calls"])
    message.setdefault("content", "")
    return message


def _texts(at: str, given: dict[str, Any], *names: str) -> dict[str, str]:
    return {name: _text(f"{at}.{name}", given[name]) for name in names if name in given}


def _content(at: str, content: object, refusals: bool = False) -> str:
    return content_text(f"{at}.content", content, refusals)


def content_text(at: str, content: object, refusals: bool = False) -> str:
    """A text, or text parts joined by newlines.

    Args:
        at: where it stands.
        content: what was sent.
        refusals: whether parts of type ``refusal`` may be among them.

    Raises:
        ServerError: DP631, DP632, DP635 or DP637.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        _refuse(at, "a text or a list of text parts", content)
    return "\n".join(_part(f"{at}.{index}", part, refusals) for index, part in enumerate(content))


def _part(at: str, part: object, refusals: bool) -> str:
    if not isinstance(part, dict):
        _refuse(at, "an object with type and text", part)
    kind = part.get("type")
    if kind != "text" and not (refusals and kind == "refusal"):
        if not isinstance(kind, str):
            _refuse(f"{at}.type", "'text'", kind)
        raise ServerError(
            "DP635",
            f"{at}.type must be 'text', got {kind[:40]!r}: this server takes text alone",
            f"{at}.type",
        )
    for name in part:
        if name not in ("type", kind):
            raise ServerError("DP632", f"{at}.{name} is not a field of a part of type {kind}", f"{at}.{name}")
    if kind not in part:
        _missing(f"{at}.{kind}")
    return _text(f"{at}.{kind}", part[kind])


def _tool_calls(at: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        _refuse(at, "a list of tool calls", calls)
    return [_tool_call(f"{at}.{index}", call) for index, call in enumerate(calls)]


def _tool_call(at: str, call: object) -> dict[str, Any]:
    if not isinstance(call, dict):
        _refuse(at, "an object with id, type and function", call)
    for name in call:
        if name not in ("id", "type", "function", "index"):
            raise ServerError("DP632", f"{at}.{name} is not a field of a tool call", f"{at}.{name}")
    for name in ("id", "function"):
        if name not in call:
            _missing(f"{at}.{name}")
    if call.get("type", "function") != "function":
        _refuse(f"{at}.type", "'function'", call["type"])
    return {
        "id": _text(f"{at}.id", call["id"]),
        "type": "function",
        "function": _function(f"{at}.function", call["function"]),
    }


def _function(at: str, function: object) -> dict[str, str]:
    if not isinstance(function, dict):
        _refuse(at, "an object with name and arguments", function)
    for name in function:
        if name not in ("name", "arguments"):
            raise ServerError("DP632", f"{at}.{name} is not a field of a call's function", f"{at}.{name}")
    for name in ("name", "arguments"):
        if name not in function:
            _missing(f"{at}.{name}")
    return {name: _text(f"{at}.{name}", function[name]) for name in ("name", "arguments")}


def _text(at: str, value: object) -> str:
    if not isinstance(value, str):
        _refuse(at, "a text", value)
    return value


def _refuse(at: str, expected: str, value: object) -> NoReturn:
    shown = "null" if value is None else type(value).__name__
    if isinstance(value, (str, int, float)):
        shown = repr(value) if len(str(value)) <= 40 else repr(str(value)[:40]) + "..."
    elif value == []:
        shown = "an empty list"
    raise ServerError("DP631", f"{at} must be {expected}, got {shown}", at)


def _missing(at: str) -> NoReturn:
    raise ServerError("DP637", f"{at} is missing", at)
