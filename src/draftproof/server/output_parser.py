"""What a model writes, told apart as it comes: thoughts, text, and calls of functions.

However the text is cut into pieces, the deltas add up to the same. What might be the beginning of a mark is held back until it is
clear that it is none.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from draftproof.server.reasoning import ReasoningFormat
from draftproof.server.tools.formats import ToolFormat
from draftproof.server.tools.plan import ToolPlan


@dataclass(frozen=True)
class ContentDelta:
    """Some text of the answer."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """Some text of a thought."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins: its number in the answer, an id for the reply, the function."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """Some text of a call's arguments."""

    index: int
    text: str


Delta = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments

_STRING = r'"((?:[^"\\]|\\.)*)"'


class OutputParser:
    """Reads one output.

    Args:
        reasoning: how thoughts are marked; None: there are none.
        plan: which functions may be called; None: none.

    Attributes:
        called: whether a call has come.
    """

    def __init__(self, reasoning: ReasoningFormat | None, plan: ToolPlan | None) -> None:
        self._reasoning = reasoning
        self._format = plan.format if plan is not None and plan.functions else None
        self.called = False
        self._text = ""
        self._calls = 0
        self._state = "open" if reasoning is not None else "content"
        self._after_call = False  # nothing but blanks has come since a call
        self._begun = False  # something other than blanks has been shown as content
        self._depth, self._quoted, self._escaped = 0, False, False
        if reasoning is not None and reasoning.starts_inside:
            self._state = "thought"

    def feed(self, text: str, finished: bool = False) -> list[Delta]:
        """Take more of the output in.

        Args:
            text: what comes next.
            finished: nothing comes after it.
        """
        self._text += text
        deltas: list[Delta] = []
        while self._step(deltas, finished):
            pass
        return _joined(deltas)

    def _step(self, deltas: list[Delta], finished: bool) -> bool:
        """One stretch; whether another may follow."""
        return bool(getattr(self, f"_in_{self._state}")(deltas, finished))

    # Thoughts

    def _in_open(self, deltas: list[Delta], finished: bool) -> bool:
        """At the very beginning, where a thought may open."""
        assert self._reasoning is not None
        mark, rest = self._reasoning.start, self._text.lstrip()
        if rest.startswith(mark):
            self._text, self._state = rest[len(mark) :], "thought"
            return True
        if mark.startswith(rest) and not finished:
            return False
        self._state = "content"
        return True

    def _in_thought(self, deltas: list[Delta], finished: bool) -> bool:
        assert self._reasoning is not None
        before, found, after = self._text.partition(self._reasoning.end)
        if found:
            if before:
                deltas.append(ReasoningDelta(before))
            self._text, self._state = after, "after_thought"
            return True
        safe = len(self._text) if finished else _safe(self._text, self._reasoning.end)
        if safe:
            deltas.append(ReasoningDelta(self._text[:safe]))
            self._text = self._text[safe:]
        return False

    def _in_after_thought(self, deltas: list[Delta], finished: bool) -> bool:
        """The blanks between thought and answer belong to neither."""
        self._text = self._text.lstrip()
        if not self._text:
            return False
        self._state = "content"
        return True

    # Text

    def _in_content(self, deltas: list[Delta], finished: bool) -> bool:
        format_ = self._format
        if format_ is None:
            self._show(deltas, self._text)
            self._text = ""
            return False
        if format_.leads:
            return self._in_leading(deltas, finished)
        before, found, after = self._text.partition(format_.start)
        if found:
            self._show(deltas, before.rstrip())
            self._text, self._state = after, "call"
            return True
        # Blanks before a call, or between calls, are not shown; whether a call follows is not known yet.
        shown = self._text if finished else self._text[: _safe(self._text, format_.start)]
        if not finished:
            shown = shown[: len(shown.rstrip())]
        if shown and (shown.strip() or not self._after_call):
            self._show(deltas, shown)
        self._text = self._text[len(shown) :]
        return False

    def _in_leading(self, deltas: list[Delta], finished: bool) -> bool:
        assert self._format is not None
        rest = self._text.lstrip()
        if not self._begun and rest.startswith(self._format.start):
            self._text, self._state = rest[len(self._format.start) :], "call"
            return True
        if not self._begun and self._format.start.startswith(rest) and not finished:
            return False
        if self._text and not (self._calls and not rest):
            self._show(deltas, self._text)
        self._text = ""
        return False

    def _show(self, deltas: list[Delta], text: str) -> None:
        if text:
            self._begun, self._after_call = True, False
            deltas.append(ContentDelta(text))

    # Calls

    def _in_call(self, deltas: list[Delta], finished: bool) -> bool:
        """Behind the mark: the name, up to where the arguments begin."""
        assert self._format is not None
        found = self._head().match(self._text)
        if found is not None:
            self.called = True
            deltas.append(ToolCallStart(self._calls, _new_id(self._format), found[1]))
            self._text, self._state = self._text[found.end() :], "before_arguments"
            self._depth, self._quoted, self._escaped = 0, False, False
            return True
        end = self._text.find(self._format.end) if self._format.end else -1
        if end < 0 and not finished:
            return False
        # Not the form of a call: then it is text.
        cut = end + len(self._format.end) if end >= 0 else len(self._text)
        self._show(deltas, self._format.start + self._text[:cut])
        self._text, self._state = self._text[cut:], "content"
        return bool(self._text)

    def _head(self) -> re.Pattern[str]:
        assert self._format is not None
        if self._format.separator:
            return re.compile(r"\s*([A-Za-z0-9_.-]+)\s*" + re.escape(self._format.separator))
        if self._format.leads:
            return re.compile(r'((?:[^"\\]|\\.)*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*')
        opening = r"\s*\[?\s*" if self._format.listed else r"\s*"
        return re.compile(
            opening + r'\{\s*"name"\s*:\s*' + _STRING + r'\s*,\s*"(?:arguments|parameters)"\s*:\s*'
        )

    def _in_before_arguments(self, deltas: list[Delta], finished: bool) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        self._state = "arguments"
        return True

    def _in_arguments(self, deltas: list[Delta], finished: bool) -> bool:
        """A JSON value, up to where its brackets are even."""
        end = self._value_end()
        part = self._text if end is None else self._text[:end]
        if part:
            deltas.append(ToolCallArguments(self._calls, part))
        self._text = self._text[len(part) :]
        if end is None:
            return False
        self._calls += 1
        self._after_call = True
        self._state = "after_arguments"
        return True

    def _value_end(self) -> int | None:
        for place, character in enumerate(self._text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = character == "\\", character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None

    def _in_after_arguments(self, deltas: list[Delta], finished: bool) -> bool:
        """What closes a call, or leads to the next one of a list."""
        assert self._format is not None
        if self._format.separator:  # nothing closes such a call
            self._state = "content"
            return True
        if self._format.listed:
            closing = re.match(r"\s*\}\s*(,|\])", self._text)
            if closing is not None:
                self._text = self._text[closing.end() :]
                self._state = "call" if closing[1] == "," else "content"
                return True
        else:
            closing = re.match(r"\s*\}\s*" + re.escape(self._format.end), self._text)
            if closing is not None:
                self._text, self._state = self._text[closing.end() :], "content"
                return True
        if finished:
            self._text = ""
        return False


def _new_id(format_: ToolFormat) -> str:
    """An id for the reply. Mistral's templates take nine letters and digits, and nothing else."""
    return uuid.uuid4().hex[:9] if format_.name.startswith("mistral") else f"call_{uuid.uuid4().hex[:24]}"


def _safe(text: str, mark: str) -> int:
    """How much of a text is certainly not the beginning of a mark."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-size:]):
            return len(text) - size
    return len(text)


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind as one."""
    joined: list[Delta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            joined[-1] = ContentDelta(last.text + delta.text)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + delta.text)
        elif (
            isinstance(delta, ToolCallArguments)
            and isinstance(last, ToolCallArguments)
            and delta.index == last.index
        ):
            joined[-1] = ToolCallArguments(delta.index, last.text + delta.text)
        else:
            joined.append(delta)
    return joined
