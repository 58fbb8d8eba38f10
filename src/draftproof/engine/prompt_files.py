"""Files of prompts: JSON Lines, an object a line. One reader for everything that takes such a file.

A line has the text to ask under one of three names, and may name its kind of text under ``group``:

* ``prompt``: a text;
* ``turns``: a list of texts, of which the first is asked (where there is a ``prompt`` too, that is asked);
* ``messages``: a conversation of ``{"role": ..., "content": ...}``, answered from its last message that is not the assistant's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.errors import RequestError

_EXPECTED = "expected a field 'prompt' with a text in it (or 'turns', or 'messages')"


@dataclass(frozen=True)
class FilePrompt:
    """A line of a file of prompts.

    Attributes:
        messages: what is to be answered: role and text of each message; the last one is not the assistant's.
        group: the kind of text; "" where the line names none.
        later: texts of later turns, which are not asked.
    """

    messages: tuple[tuple[str, str], ...]
    group: str = ""
    later: tuple[str, ...] = ()

    @classmethod
    def asking(cls, text: str, group: str = "") -> FilePrompt:
        """A single question."""
        return cls((("user", text),), group)

    @property
    def text(self) -> str:
        """The first text of the user's, for those who ask just one."""
        return next((text for role, text in self.messages if role == "user"), self.messages[0][1])

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text of the user's, later turns included."""
        return (*(text for role, text in self.messages if role == "user"), *self.later)

    @property
    def chat(self) -> list[dict[str, str]]:
        """The conversation, as `LLM.chat` takes it."""
        return [{"role": role, "content": text} for role, text in self.messages]


def read_prompt_file(path: Path, code: str) -> list[FilePrompt]:
    """Every prompt of a file, in its order; lines of white space are passed over.

    Args:
        path: the file, UTF-8.
        code: of the error, for each command explains its own files.

    Raises:
        RequestError: `code`, the file cannot be read or a line is no prompt; the message says which.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RequestError(code, f"cannot read the prompts in {path}: {reason}") from error
    # A text may hold other line separators (U+2028), so only the newline ends a line.
    lines = enumerate(text.split("\n"), 1)
    return [_from_line(line, f"{path}, line {number}", code) for number, line in lines if line.strip()]


def _from_line(line: str, place: str, code: str) -> FilePrompt:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(code, f"{place}: expected a JSON object, got {line.strip()[:40]!r}") from error
    try:
        return _from_row(row)
    except ValueError as error:
        raise RequestError(code, f"{place}: {error}") from error


def _from_row(row: Any) -> FilePrompt:
    """The prompt of a line. Raises ValueError, which says what is wrong."""
    if not isinstance(row, dict):
        raise ValueError(_EXPECTED)
    group = str(row.get("group") or "")
    turns = row.get("turns")
    if turns is not None and not (isinstance(turns, list) and turns and all(map(_is_text, turns))):
        raise ValueError("expected a list of texts under 'turns'")
    later = tuple(turns[1:]) if turns else ()
    if "prompt" in row:
        if not _is_text(row["prompt"]):
            raise ValueError(_EXPECTED)
        return FilePrompt((("user", row["prompt"]),), group, later)
    if turns:
        return FilePrompt((("user", turns[0]),), group, later)
    if "messages" in row:
        return FilePrompt(_conversation(row["messages"]), group)
    raise ValueError(_EXPECTED)


def _is_text(item: object) -> bool:
    return isinstance(item, str) and bool(item.strip())


def _conversation(messages: object) -> tuple[tuple[str, str], ...]:
    """Role and text of each message, up to the last one that wants an answer."""
    told = [_message(message) for message in messages] if isinstance(messages, list) else []
    while told and told[-1][0] == "assistant":
        told.pop()
    if not any(role == "user" and text.strip() for role, text in told):
        raise ValueError("expected a conversation under 'messages', with a text of the user's to answer")
    return tuple(told)


def _message(message: object) -> tuple[str, str]:
    if isinstance(message, dict) and isinstance(message.get("role"), str):
        content = message.get("content")
        if isinstance(content, str):
            return message["role"], content
        if isinstance(content, list) and all(
            isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
        ):
            return message["role"], "\n".join(part["text"] for part in content)
    raise ValueError(f"expected 'role' and a text under 'content' in each message, got {message!r:.60}")
