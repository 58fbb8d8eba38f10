"""Explanations of DP660 to DP679: functions that a model may call, and thoughts."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP660",
        name="bad-tools",
        title="`tools` is not a list of functions.",
        meaning=(
            "Each tool is an object of type 'function' that holds the function: its name, a description, and the schema of its "
            "arguments."
        ),
        triggers=(
            "The function itself in the list, without the object around it.",
            "A tool of another type, which only its maker's server runs.",
        ),
        fix="Write each tool as OpenAI's API has it.",
        before='tools=[{"name": "add", "parameters": {...}}]',
        after='tools=[{"type": "function", "function": {"name": "add", "parameters": {...}}}]',
        prevention="Use a client library's types for tools.",
    ),
    Explanation(
        code="DP661",
        name="no-such-tool-format",
        title="No way of writing calls has this name.",
        meaning=(
            "Families of models write calls differently. The server sees from the chat template which way is the model's; an "
            "option may say it instead."
        ),
        triggers=("A typing error in --tool-format.", "A name of another server's parsers."),
        fix="Use one of the names in the message, or leave the option out.",
        before="draftproof serve MODEL --tool-format hermes2",
        after="draftproof serve MODEL --tool-format hermes",
        prevention="Leave the option out unless calls come out as text.",
    ),
    Explanation(
        code="DP662",
        name="bad-function-name",
        title="A function's name cannot be used, or is there twice.",
        meaning="The model writes the name into its call, so it must be short and plain, and tell the functions apart.",
        triggers=("A name with blanks or brackets.", "Two tools made from one function."),
        fix="Give each function its own name of letters, digits, '_', '-' and '.', at most 64 of them.",
        before='{"name": "get weather"}',
        after='{"name": "get_weather"}',
        prevention="Use names that a programming language would take.",
    ),
    Explanation(
        code="DP663",
        name="bad-function-parameters",
        title="A function's `parameters` is not the schema of an object.",
        meaning="Arguments are a JSON object, and `parameters` its JSON schema. What the model writes always fits it.",
        triggers=("A list of parameter names.", "The schema of a number or a list."),
        fix="Write a schema of type object with a property for each argument.",
        before='"parameters": {"type": "string"}',
        after='"parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
        prevention="Make schemas with pydantic: Model.model_json_schema().",
    ),
    Explanation(
        code="DP664",
        name="bad-tool-choice",
        title="`tool_choice` is none of what it can be.",
        meaning="It is 'auto' (text or calls), 'none' (text), 'required' (calls), or one function by name.",
        triggers=("'any', which other servers have.", "A bare name instead of an object."),
        fix="Use one of the four forms.",
        before='tool_choice="any"',
        after='tool_choice="required"',
        prevention="Use a client library's types.",
    ),
    Explanation(
        code="DP665",
        name="unknown-function",
        title="`tool_choice` names a function that is not among `tools`.",
        meaning="The model can be made to call only a function whose schema it is given.",
        triggers=("A typing error.", "A function that was left out of the list."),
        fix="Add the function to `tools`, or name one that is there.",
        before='tool_choice={"type": "function", "function": {"name": "ad"}}',
        after='tool_choice={"type": "function", "function": {"name": "add"}}',
        prevention="Take the name from the tool, not from a text of its own.",
    ),
    Explanation(
        code="DP670",
        name="no-such-reasoning-format",
        title="No way of marking thoughts has this name.",
        meaning=(
            "The server sees from the chat template whether and how a model marks its thoughts; an option may say it "
            "instead."
        ),
        triggers=("A typing error in --reasoning-format.",),
        fix="Use one of the names in the message, or leave the option out.",
        before="draftproof serve MODEL --reasoning-format deepseek",
        after="draftproof serve MODEL --reasoning-format think",
        prevention="Leave the option out unless thoughts come out as text.",
    ),
)
