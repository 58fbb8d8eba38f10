"""What a model may write where it may call functions, as a grammar for llguidance.

Text goes on as it likes until the mark of a call is complete; from there on the call's form is the only thing that may come. That
is what lazy terminals are for: they end as soon as they can, so that the mark cannot be taken for more text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.server.reasoning import ReasoningFormat
from draftproof.server.tools.formats import ToolFormat

_BLANKS = r"[ \n\t]{1,20}"


@dataclass(frozen=True)
class Function:
    """A function that may be called: its name, and the JSON schema of its arguments."""

    name: str
    parameters: dict[str, Any]


def grammar_of(
    format_: ToolFormat,
    functions: Sequence[Function],
    *,
    must: bool,
    several: bool,
    reasoning: ReasoningFormat | None = None,
) -> str:
    """A Lark grammar.

    Args:
        format_: how calls are written.
        functions: that may be called.
        must: a call is the only thing that may come (behind thoughts); else free text or calls.
        several: more than one call may come.
        reasoning: thoughts may come first; in them the mark of a call is none.
    """
    several = several and format_.parallel
    names = [f"call_{index}" for index in range(len(functions))]
    calls = [f"{name}: {_call(format_, function)}" for name, function in zip(names, functions, strict=True)]
    listed = f'"[" one{" (" + json.dumps(", ") + " one)*" if several else ""} "]"'
    lines = [
        f"one: {' | '.join(names)}",
        f"body: {listed if format_.listed else 'one'}",
        f"end_mark: {_mark(format_.end, format_.end_id)}",
        *calls,
        r"TEXT: /(.|\n)*/",
        r"SPACE: /[ \n\t]{0,4}/",
    ]
    first = ""
    if reasoning is not None:
        first = "thought_end SPACE " if reasoning.starts_inside else "(thought_mark thought_end SPACE)? "
        lines += [
            _lazy_mark("thought_mark", reasoning.start, reasoning.start_id),
            _text_up_to("thought_end", reasoning.end, reasoning.end_id),
        ]
    if must:
        lines += [f"start_mark: {_mark(format_.start, format_.start_id)}"]
        again = " (SPACE start_mark body end_mark)*" if several and not format_.listed else ""
        rest = f"start_mark body end_mark{again}"
    else:
        lines += ["tail: TEXT", _free_mark(format_)]
        rest = "(start_mark body end_mark)* tail" if several else "(start_mark body end_mark | tail)"
    return "\n".join(("%llguidance {}", f"start: {first}{rest}", *lines, ""))


def _free_mark(format_: ToolFormat) -> str:
    """Text up to and with the mark of a call."""
    if format_.leads:
        return _lazy_mark("start_mark", format_.start, format_.start_id)
    return _text_up_to("start_mark", format_.start, format_.start_id)


def _text_up_to(rule: str, mark: str, token: int | None) -> str:
    """A rule for text that ends with a mark, at its first place. A special token is in no text, and so needs no care."""
    if token is not None:
        return f"{rule}: TEXT <[{token}]>"
    return f"{rule}[lazy]: TEXT {json.dumps(mark)}"


def _call(format_: ToolFormat, function: Function) -> str:
    """A call without its marks. What `start` holds of it already is left out."""
    # A small model may write blanks for ever where it may.
    bounded = {**function.parameters, "x-guidance": {"whitespace_pattern": _BLANKS}}
    schema = json.dumps(bounded, ensure_ascii=False)
    if format_.separator:
        between = _mark(format_.separator, format_.separator_id)
        return f"{json.dumps(function.name)} {between} %json {schema}"
    space = "" if format_.listed or format_.leads else "\n"
    opening = f'{space}{{"name": {json.dumps(function.name)}, "{format_.arguments}": '
    if format_.leads:
        opening = opening.removeprefix(format_.start)
    closing = "}" + space
    return f"{json.dumps(opening)} %json {schema} {json.dumps(closing)}"


def _lazy_mark(rule: str, mark: str, token: int | None) -> str:
    """A rule for a mark where text might come as well: it ends as soon as the mark is complete."""
    return f"{rule}[lazy]: {json.dumps(mark)}" if token is None else f"{rule}: <[{token}]>"


def _mark(text: str, token: int | None) -> str:
    return json.dumps(text) if token is None else f"<[{token}]>"
