"""How families of models write calls of functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from draftproof.errors import ServerError
from draftproof.server.marks import any_special, grammar_id, template_text


@dataclass(frozen=True)
class ToolFormat:
    """A way of writing calls: ``start { "name": NAME, "<arguments>": {...} } end``, or ``start NAME separator {...}``.

    Attributes:
        name: for `--tool-format`.
        start, end: texts before and behind a call; `end` may be empty.
        arguments: key of the arguments.
        listed: between `start` and `end` stands a list of calls.
        leads: `start` marks a call at the beginning of the output only.
        in_template: the model's chat template presents functions and calls; else the server does, in plain words.
        separator: between the name and the arguments, where a call is no object.
        start_id, end_id, separator_id: token ids, where the texts are tokens that are no text to a grammar.
        hidden: whether one of them is a special token, which outputs leave out as a rule.
    """

    name: str
    start: str
    end: str
    arguments: str = "arguments"
    listed: bool = False
    leads: bool = False
    in_template: bool = True
    separator: str = ""
    start_id: int | None = None
    end_id: int | None = None
    separator_id: int | None = None
    hidden: bool = False

    @property
    def parallel(self) -> bool:
        """Whether an output may hold several calls."""
        return not self.leads


_LLAMA_START = '{"name": "'

_FORMATS = {
    "hermes": ToolFormat("hermes", "<tool_call>", "</tool_call>"),
    "llama3_json": ToolFormat("llama3_json", _LLAMA_START, "", arguments="parameters", leads=True),
    "mistral": ToolFormat("mistral", "[TOOL_CALLS]", "", listed=True),
    "mistral_args": ToolFormat("mistral_args", "[TOOL_CALLS]", "", separator="[ARGS]"),
    "json": ToolFormat("json", "<tool_call>", "</tool_call>", in_template=False),
}


def tool_format(name: str) -> ToolFormat:
    """A format by name.

    Raises:
        ServerError: DP661, no format has that name.
    """
    if name not in _FORMATS:
        raise ServerError("DP661", f"tool_format must be one of {', '.join(_FORMATS)}, got {name[:60]!r}")
    return _FORMATS[name]


def detect_tool_format(tokenizer: Any) -> ToolFormat:
    """The format that a model's chat template looks like; ``json`` for models whose template knows no functions."""
    template = template_text(tokenizer)
    if "tools" not in template:
        return _FORMATS["json"]
    if "[TOOL_CALLS]" in template:
        return of_tokenizer(_FORMATS["mistral_args" if "[ARGS]" in template else "mistral"], tokenizer)
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return of_tokenizer(_FORMATS["hermes"], tokenizer)
    if '"parameters"' in template and "python_tag" in template:
        return _FORMATS["llama3_json"]
    return _FORMATS["json"]


def of_tokenizer(format_: ToolFormat, tokenizer: Any) -> ToolFormat:
    """A format with the ids of those of its texts that are tokens of a tokenizer."""
    return replace(
        format_,
        start_id=grammar_id(tokenizer, format_.start),
        end_id=grammar_id(tokenizer, format_.end),
        separator_id=grammar_id(tokenizer, format_.separator),
        hidden=any_special(tokenizer, format_.start, format_.end, format_.separator),
    )
