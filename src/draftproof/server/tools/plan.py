"""From the `tools` and `tool_choice` of a request to what the model sees, may write, and how that is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher

from draftproof.errors import ServerError
from draftproof.sampling import StructuredOutputs
from draftproof.server.reasoning import ReasoningFormat
from draftproof.server.tools.formats import ToolFormat
from draftproof.server.tools.grammar import Function, grammar_of

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_TOOLS = 128
"""As OpenAI's."""
_FIELDS = frozenset(("name", "description", "parameters", "strict"))

_WORDS = """You can call these functions by writing exactly
<tool_call>
{"name": NAME, "arguments": ARGUMENTS}
</tool_call>

"""


@dataclass(frozen=True)
class ToolPlan:
    """How functions are offered in one request.

    Attributes:
        format: how the model writes calls.
        functions: those that it may call; none with ``tool_choice="none"``.
        structured_outputs: what it may write; None: anything.
        template_tools: for the model's chat template; None where it knows none.
        skip_special_tokens: False where the marks of a call are special tokens, which have to be seen.
        stop: strings at which the output ends.
    """

    format: ToolFormat
    functions: tuple[Function, ...]
    structured_outputs: StructuredOutputs | None
    template_tools: tuple[Mapping[str, Any], ...] | None
    described: tuple[Mapping[str, Any], ...] = ()
    skip_special_tokens: bool = True
    stop: tuple[str, ...] = ()

    def messages_with_tools(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The conversation as the model's template takes it.

        Where the template knows no functions, they are described in the system message, calls are written out, and results become
        a user's words.
        """
        if self.format.in_template:
            return [dict(message) for message in messages]
        plain = [_written_out(message, self.format) for message in messages]
        if not self.described:
            return plain
        words = _WORDS + "\n".join(json.dumps(one, ensure_ascii=False) for one in self.described)
        if plain and plain[0].get("role") == "system":
            first = {**plain[0], "content": f"{plain[0].get('content') or ''}\n\n{words}".lstrip()}
            return [first, *plain[1:]]
        return [{"role": "system", "content": words}, *plain]


def _written_out(message: Mapping[str, Any], format_: ToolFormat) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>",
        }
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    written = []
    for call in calls:
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        said = f'{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}'
        written.append(f"{format_.start}\n{said}\n{format_.end}")
    content = "\n".join([text for text in (_text(message.get("content")),) if text] + written)
    return {"role": "assistant", "content": content}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))


def plan_tools(
    format_: ToolFormat,
    tools: Sequence[Any],
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = None,
    reasoning: ReasoningFormat | None = None,
) -> ToolPlan:
    """Check what a request says about functions, and plan for it.

    Args:
        format_: of the model.
        tools: OpenAI's ``[{"type": "function", "function": {"name", "description", "parameters"}}]``.
        tool_choice: None or ``"auto"``, ``"none"``, ``"required"``, or ``{"type": "function", "function": {"name"}}``.
        parallel_tool_calls: whether an answer may hold several calls; None: yes.
        reasoning: how the model marks thoughts, which may come before a call that must.

    Raises:
        ServerError: DP660 to DP665; `param` names the field.
    """
    if not 1 <= len(tools) <= MOST_TOOLS:
        raise ServerError("DP660", f"tools must hold 1 to {MOST_TOOLS} functions, got {len(tools)}", "tools")
    functions = [_function(tool, index) for index, tool in enumerate(tools)]
    names = [function.name for function in functions]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ServerError(
                "DP662",
                f"tools.{index}.function.name: {name!r} is there twice",
                f"tools.{index}.function.name",
            )
    chosen = _chosen(tool_choice, names)
    if chosen == "none":
        return ToolPlan(format_, (), None, None)
    only = chosen.name if isinstance(chosen, _Named) else None
    callable_ = [function for function in functions if only in (None, function.name)]
    grammar = grammar_of(
        format_,
        callable_,
        must=only is not None or chosen == "required",
        several=parallel_tool_calls is not False and only is None,
        reasoning=reasoning,
    )
    return ToolPlan(
        format_,
        tuple(callable_),
        StructuredOutputs(grammar=grammar),
        tuple(tools) if format_.in_template else None,
        described=() if format_.in_template else tuple(tool["function"] for tool in tools),
        skip_special_tokens=not format_.hidden,
    )


@dataclass(frozen=True)
class _Named:
    name: str


def _function(tool: Any, index: int) -> Function:
    where = f"tools.{index}"
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        raise ServerError("DP660", f"{where} must be an object of type 'function'", f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise ServerError("DP660", f"{where}.function must be an object", f"{where}.function")
    if unknown := sorted(function.keys() - _FIELDS):
        raise ServerError(
            "DP660",
            f"{where}.function has no field {str(unknown[0])[:60]!r}",
            f"{where}.function.{str(unknown[0])[:60]}",
        )
    if not isinstance(function.get("strict"), (bool, type(None))):
        raise ServerError(
            "DP660", f"{where}.function.strict must be true or false", f"{where}.function.strict"
        )
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ServerError(
            "DP662",
            f"{where}.function.name must be 1 to 64 letters, digits, '_', '-' or '.', got {str(name)[:80]!r}",
            f"{where}.function.name",
        )
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping):
        raise ServerError(
            "DP663",
            f"{where}.function.parameters must be a JSON schema (an object)",
            f"{where}.function.parameters",
        )
    # JSON schema lets one type stand in a list.
    if parameters.get("type", "object") not in ("object", ["object"]):
        raise ServerError(
            "DP663",
            f"{where}.function.parameters must be the schema of an object, got type {str(parameters['type'])[:40]!r}",
            f"{where}.function.parameters.type",
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise ServerError(
            "DP660", f"{where}.function.description must be a text", f"{where}.function.description"
        )
    schema = {**parameters, "type": "object"}
    _check_schema(schema, f"{where}.function.parameters")
    return Function(name, schema)


def _check_schema(schema: Mapping[str, Any], where: str) -> None:
    """Whether a grammar can be made of a schema: here, where the function's place in the request is known."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        problem = LLMatcher.validate_grammar(grammar)
    except (ValueError, RecursionError) as error:
        problem = str(error)
    if problem:
        raise ServerError("DP663", f"{where} cannot be used: {problem.splitlines()[0][:300]}", where)


def _chosen(tool_choice: Any, names: Sequence[str]) -> str | _Named:
    if tool_choice is None:
        return "auto"
    if isinstance(tool_choice, str):
        if tool_choice not in ("auto", "none", "required"):
            raise ServerError(
                "DP664",
                f"tool_choice must be 'auto', 'none', 'required' or a function, got {tool_choice[:60]!r}",
                "tool_choice",
            )
        return tool_choice
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if tool_choice.get("type") != "function" if isinstance(tool_choice, Mapping) else True:
        raise ServerError(
            "DP664",
            "tool_choice must be a text or {'type': 'function', 'function': {'name': ...}}",
            "tool_choice",
        )
    if name not in names:
        raise ServerError(
            "DP665",
            f"tool_choice names the function {str(name)[:80]!r}, which is not among tools: {', '.join(names)}",
            "tool_choice.function.name",
        )
    return _Named(str(name))
