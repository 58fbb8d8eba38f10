"""Calls of functions: whatever a model of random weights says under the grammar, it is read as calls that fit their schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import SamplingParams
from draftproof.errors import ServerError, explanation
from draftproof.server.output_parser import (
    ContentDelta,
    Delta,
    OutputParser,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from draftproof.server.reasoning import ReasoningFormat, detect_reasoning, reasoning_format
from draftproof.server.tools.formats import ToolFormat, detect_tool_format, of_tokenizer, tool_format
from draftproof.server.tools.plan import ToolPlan, plan_tools
from support.llms import tiny_llm

NAMES = ("hermes", "llama3_json", "mistral", "mistral_args", "json")
THINK = ReasoningFormat("think", "<think>", "</think>")


def tool(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": schema}}


SWITCH = tool("switch", on={"type": "boolean"})
COUNT = tool("count_to", limit={"type": "integer", "minimum": 0, "maximum": 99}, word={"enum": ["a", "b"]})
TOOLS = [SWITCH, COUNT]


def read(parser: OutputParser, *pieces: str) -> tuple[str, str, list[tuple[str, str]]]:
    """(thoughts, text, calls as (name, arguments)) of an output that comes in pieces."""
    deltas: list[Delta] = []
    for place, piece in enumerate(pieces):
        deltas += parser.feed(piece, finished=place == len(pieces) - 1)
    thoughts = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    text = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    starts = [delta for delta in deltas if isinstance(delta, ToolCallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
    assert len({start.id for start in starts}) == len(starts)
    said = ["" for _ in starts]
    for delta in deltas:
        if isinstance(delta, ToolCallArguments):
            said[delta.index] += delta.text
    return thoughts, text, [(start.name, arguments) for start, arguments in zip(starts, said, strict=True)]


def check_calls(calls: list[tuple[str, str]]) -> None:
    for name, said in calls:
        arguments = json.loads(said)
        if name == "switch":
            assert set(arguments) == {"on"}
            assert isinstance(arguments["on"], bool)
        else:
            assert name == "count_to"
            assert 0 <= arguments["limit"] <= 99
            assert arguments["word"] in ("a", "b")


def outputs(plan: ToolPlan, count: int = 3, tokens: int = 160) -> list[tuple[str, str]]:
    """Text and finish reason of some outputs of a random model under the plan's grammar."""
    params = SamplingParams(
        temperature=1.0,
        seed=3,
        n=count,
        max_tokens=tokens,
        structured_outputs=plan.structured_outputs,
        skip_special_tokens=plan.skip_special_tokens,
    )
    (result,) = tiny_llm().generate([[5, 6, 7]], params)
    return [(choice.text, choice.finish_reason) for choice in result.choices]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parallel", [None, False])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "switch"}}])
def test_calls_that_must_come_come_and_fit(name: str, parallel: bool | None, choice: Any) -> None:
    plan = plan_tools(tool_format(name), TOOLS, choice, parallel)
    ended = 0
    for text, reason in outputs(plan):
        parser = OutputParser(None, plan)
        thoughts, content, calls = read(parser, text)
        assert not thoughts
        if reason != "stop":
            continue
        ended += 1
        assert content == ""
        assert parser.called
        check_calls(calls)
        assert len(calls) >= 1
        if parallel is False or choice != "required" or name == "llama3_json":
            assert len(calls) == 1
        if choice != "required":
            assert calls[0][0] == "switch"
    assert ended


@pytest.mark.parametrize("name", NAMES)
def test_text_or_calls_with_auto(name: str) -> None:
    """A random model hardly begins a call by itself, so the mark is made likely: it is put in front."""
    format_ = tool_format(name)
    plan = plan_tools(format_, TOOLS, "auto")
    for text, _ in outputs(plan, tokens=40):
        assert read(OutputParser(None, plan), text)[1].strip() == text.strip()
    grammar = tiny_llm()._intake._grammars.compile(plan.structured_outputs)
    tokenizer = tiny_llm().tokenizer

    def allowed(said: str) -> bool:
        state = grammar.new_state()
        return all(state.take(token) for token in tokenizer(said, add_special_tokens=False)["input_ids"])

    lead = "" if format_.leads else "Let me see. "
    key = format_.arguments
    opening = format_.start.removesuffix('{"name": "')
    space = "" if format_.listed or format_.leads else "\n"
    bracket = "[" if format_.listed else ""
    assert allowed('Some < text { with [ marks, <tool_cal and more: {"a": 1}')
    good = f'{lead}{opening}{bracket}{space}{{"name": "switch", "{key}": {{"on": true}}}}{space}'
    if format_.separator:
        good = f'{lead}{opening}switch{format_.separator}{{"on": true}}'
    assert allowed(good)
    assert not allowed(good.replace("true", "1"))
    assert not allowed(good.replace("switch", "launch"))
    assert allowed(good.replace("true", "   true"))
    assert not allowed(good.replace("true", 100 * " " + "true")), "blanks without end"


def written(format_: ToolFormat, calls: list[tuple[str, dict[str, Any]]], lead: str, tail: str) -> str:
    """An output as a model of this format writes it."""
    if format_.separator:
        marked = (f"{format_.start}{n}{format_.separator}{json.dumps(a)}" for n, a in calls)
        return lead + "".join(marked) + tail
    said = [f'{{"name": {json.dumps(n)}, "{format_.arguments}": {json.dumps(a)}}}' for n, a in calls]
    if format_.leads:
        return said[0]
    if format_.listed:
        return f"{lead}{format_.start}[{', '.join(said)}]{tail}"
    return lead + "\n".join(f"{format_.start}\n{one}\n{format_.end}" for one in said) + tail


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(NAMES),
    lead=st.text('ab <{[\n"tool_c', max_size=12),
    tail=st.text("xyz\n ", max_size=6),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    count=st.integers(1, 3),
    thought=st.none() | st.text("abc <>/think\n", max_size=12),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_any_split_reads_the_same(
    name: str, lead: str, tail: str, value: Any, count: int, thought: str | None, cuts: list[int]
) -> None:
    format_ = tool_format(name)
    plan = plan_tools(format_, TOOLS, "auto")
    calls = [("switch", {"on": value, "n": number}) for number in range(1 if format_.leads else count)]
    text = written(format_, calls, lead, tail)
    reasoning = None
    if thought is not None and "</think>" not in thought:
        text, reasoning = f"<think>{thought}</think>{text}", THINK
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)] or [""]
    whole = read(OutputParser(reasoning, plan), text)
    assert read(OutputParser(reasoning, plan), *pieces) == whole
    if format_.start not in lead:
        assert [(n, json.loads(a)) for n, a in whole[2]] == calls
        assert whole[0] == (thought if reasoning else "")
        if not format_.leads:
            assert "".join(whole[1].split()) == "".join((lead + tail).split())


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=st.text('ab<tool_call>{"name: x}\n [TOOL_CALLS]', max_size=40), name=st.sampled_from(NAMES))
def test_text_is_never_lost(text: str, name: str) -> None:
    """Without a whole call everything that is not blank is shown."""
    plan = plan_tools(tool_format(name), TOOLS, "auto")
    parser = OutputParser(None, plan)
    _, content, calls = read(parser, *text, "")
    if not calls:
        assert content.split() == text.split()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    cuts=st.lists(st.integers(0, 200), max_size=8), bad=st.sampled_from(["bad", "{}", '{"name": 5}', "\n"])
)
def test_what_is_no_call_is_text_and_a_call_after_it_a_call(cuts: list[int], bad: str) -> None:
    plan = plan_tools(tool_format("hermes"), TOOLS, "auto")
    text = f'<tool_call>{bad}</tool_call> <tool_call>\n{{"name": "switch", "arguments": {{"on": true}}}}\n</tool_call>'
    places = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    shown = ("", f"<tool_call>{bad}</tool_call>", [("switch", '{"on": true}')])
    assert read(OutputParser(None, plan), *pieces) == shown


def test_no_tools_is_plain_text() -> None:
    plan = plan_tools(tool_format("hermes"), TOOLS, "none")
    assert plan.structured_outputs is None
    assert plan.template_tools is None
    text = '<tool_call>\n{"name": "switch", "arguments": {}}\n</tool_call>'
    assert read(OutputParser(None, plan), text) == ("", text, [])


# Thoughts


@pytest.mark.parametrize(
    ("inside", "text", "expected"),
    [
        (False, "<think>hm</think>\n\nYes", ("hm", "Yes", [])),
        (False, "  <think>hm</think>Yes", ("hm", "Yes", [])),
        (False, "No thought <think>x</think>", ("", "No thought <think>x</think>", [])),
        (False, "<think>cut off", ("cut off", "", [])),
        (True, "hm</think>\nYes", ("hm", "Yes", [])),
        (True, "cut off </thi", ("cut off </thi", "", [])),
    ],
)
def test_thoughts(inside: bool, text: str, expected: tuple[str, str, list[Any]]) -> None:
    format_ = replace(THINK, starts_inside=inside)
    assert read(OutputParser(format_, None), text) == expected
    assert read(OutputParser(format_, None), *text, "") == expected


def test_thoughts_before_calls_that_must_come() -> None:
    plan = plan_tools(tool_format("hermes"), TOOLS, "required", None, THINK)
    grammar = tiny_llm()._intake._grammars.compile(plan.structured_outputs)
    tokenizer = tiny_llm().tokenizer
    for lead in ("", "<think>which one?</think>\n"):
        state = grammar.new_state()
        said = lead + '<tool_call>\n{"name": "switch", "arguments": {"on": true}}\n</tool_call>'
        assert all(state.take(token) for token in tokenizer(said, add_special_tokens=False)["input_ids"]), (
            lead
        )
        assert state.is_complete
        assert read(OutputParser(THINK, plan), said)[2] == [("switch", '{"on": true}')]


@pytest.mark.parametrize("inside", [False, True])
def test_a_mark_in_a_thought_is_none(inside: bool) -> None:
    reasoning = replace(THINK, starts_inside=inside)
    plan = plan_tools(tool_format("hermes"), TOOLS, "auto", None, reasoning)
    grammar = tiny_llm()._intake._grammars.compile(plan.structured_outputs)
    tokenizer = tiny_llm().tokenizer
    lead = "" if inside else "<think>"
    call = '<tool_call>\n{"name": "switch", "arguments": {"on": true}}\n</tool_call>'
    for said, fits in (
        (lead + "I may write <tool_call> later</think>No.", True),
        (lead + "hm</think>" + call, True),
        (lead + "hm</think>" + call.replace("true", "1"), False),
        (lead + "hm</think>Well, " + call + "\nand " + call, True),
    ):
        state = grammar.new_state()
        taken = all(state.take(token) for token in tokenizer(said, add_special_tokens=False)["input_ids"])
        assert taken == fits, said


class Template:
    """A tokenizer with a chat template and nothing else."""

    all_special_tokens: tuple[str, ...] = ()

    def __init__(self, chat_template: Any) -> None:
        self.added_tokens_decoder: dict[int, Any] = {}
        self.chat_template = chat_template


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages }}", "json"),
        (None, "json"),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call><function={% endif %}", "json"),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", "mistral"),
        ("{% if tools %}[TOOL_CALLS]f[ARGS]{% endif %}", "mistral_args"),
        ('{% if tools %}<|python_tag|> "parameters": {% endif %}', "llama3_json"),
        ({"default": "x", "tool_use": "{% if tools %}<tool_call>"}, "hermes"),
    ],
)
def test_formats_are_seen_in_templates(template: Any, expected: str) -> None:
    assert detect_tool_format(Template(template)).name == expected


def test_thoughts_are_seen_in_templates() -> None:
    assert detect_reasoning(Template("{{ x }}")) is None
    found = detect_reasoning(Template("{% if '</think>' in content %}{% endif %}"))
    assert found is not None
    assert found.name == "think"
    brackets = detect_reasoning(Template("{{ '[THINK]' }}"))
    assert brackets is not None
    assert brackets.name == "mistral"
    assert reasoning_format("none") is None
    with pytest.raises(ServerError):
        reasoning_format("deep")


def test_marks_that_are_special_tokens() -> None:
    tokenizer = tiny_llm().tokenizer
    special = tokenizer.all_special_tokens[0]
    format_ = of_tokenizer(replace(tool_format("hermes"), start=special), tokenizer)
    assert format_.start_id == tokenizer.convert_tokens_to_ids(special)
    assert format_.end_id is None
    plan = plan_tools(format_, TOOLS, "required")
    assert not plan.skip_special_tokens
    ended = [text for text, reason in outputs(plan) if reason == "stop"]
    assert ended
    for text in ended:
        _, content, calls = read(OutputParser(None, plan), text)
        assert content == ""
        assert calls
        check_calls(calls)


# What a model sees


def test_a_template_without_functions_is_told_in_words() -> None:
    plan = plan_tools(tool_format("json"), TOOLS)
    call = {"id": "c", "type": "function", "function": {"name": "switch", "arguments": '{"on": true}'}}
    told = plan.messages_with_tools(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Light!"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ]
    )
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief.")
    assert '"count_to"' in told[0]["content"]
    assert told[2]["content"] == '<tool_call>\n{"name": "switch", "arguments": {"on": true}}\n</tool_call>'
    assert "done" in told[3]["content"]
    assert plan.messages_with_tools([{"role": "user", "content": "x"}])[0]["role"] == "system"
    known = plan_tools(tool_format("hermes"), TOOLS)
    assert known.template_tools == tuple(TOOLS)
    assert known.messages_with_tools([{"role": "user", "content": "x"}]) == [{"role": "user", "content": "x"}]


# What is refused


@pytest.mark.parametrize(
    ("tools", "choice", "code", "param"),
    [
        (["x"], None, "DP660", "tools.0.type"),
        ([{"type": "web_search"}], None, "DP660", "tools.0.type"),
        ([{"type": "function"}], None, "DP660", "tools.0.function"),
        ([SWITCH] * 2, None, "DP662", "tools.1.function.name"),
        ([{"type": "function", "function": {"name": "a b"}}], None, "DP662", "tools.0.function.name"),
        ([{"type": "function", "function": {"name": 5}}], None, "DP662", "tools.0.function.name"),
        (
            [{"type": "function", "function": {"name": "a", "parameters": []}}],
            None,
            "DP663",
            "tools.0.function.parameters",
        ),
        (
            [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}],
            None,
            "DP663",
            "tools.0.function.parameters.type",
        ),
        (
            [{"type": "function", "function": {"name": "a", "description": 5}}],
            None,
            "DP660",
            "tools.0.function.description",
        ),
        (
            [{"type": "function", "function": {"name": "a", "extra": 1}}],
            None,
            "DP660",
            "tools.0.function.extra",
        ),
        (
            [{"type": "function", "function": {"name": "a", "strict": "x"}}],
            None,
            "DP660",
            "tools.0.function.strict",
        ),
        ([SWITCH, tool("b", x={"type": "no such"})], None, "DP663", "tools.1.function.parameters"),
        ([tool("b", x={"$ref": "#/$defs/gone"})], None, "DP663", "tools.0.function.parameters"),
        ([], None, "DP660", "tools"),
        ([SWITCH], "any", "DP664", "tool_choice"),
        ([SWITCH], 5, "DP664", "tool_choice"),
        ([SWITCH], {"type": "allowed_tools"}, "DP664", "tool_choice"),
        ([SWITCH], {"type": "function", "function": {"name": "x"}}, "DP665", "tool_choice.function.name"),
        ([SWITCH], {"type": "function"}, "DP665", "tool_choice.function.name"),
        ([tool(f"f{i}") for i in range(129)], None, "DP660", "tools"),
    ],
)
def test_what_is_wrong_is_said(tools: Any, choice: Any, code: str, param: str) -> None:
    with pytest.raises(ServerError) as refused:
        plan_tools(tool_format("hermes"), tools, choice)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert explanation(code).title


def test_a_format_of_no_such_name() -> None:
    with pytest.raises(ServerError, match="hermes") as refused:
        tool_format("hermes2")
    assert refused.value.code == "DP661"
