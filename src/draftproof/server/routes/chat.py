"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from draftproof.errors import ServerError
from draftproof.sampling import SamplingParams
from draftproof.server.auth import caller_key
from draftproof.server.generation import Generation, Job
from draftproof.server.output_parser import OutputParser
from draftproof.server.protocol import ChatRequest, checked_messages, openapi_answers, openapi_body, read_body
from draftproof.server.protocol.answers import Frame
from draftproof.server.protocol.chat_answer import ChatAnswer
from draftproof.server.protocol.gone import QuietRoute
from draftproof.server.protocol.refused import CHAT
from draftproof.server.reasoning import ReasoningFormat, as_opened
from draftproof.server.sampling import (
    FromPlan,
    chat_options,
    chat_params,
    check_size,
    check_together,
    usual_temperature,
)
from draftproof.server.state import ServerState, server_of
from draftproof.server.streaming import EventStream
from draftproof.server.tools.plan import ToolPlan, plan_tools

router = APIRouter(route_class=QuietRoute)
ROUTE = "/v1/chat/completions"
FIELDS = frozenset(ChatRequest.model_fields)


@dataclass(frozen=True)
class Prepared:
    """A chat request ready for the engine.

    Attributes:
        token_ids: the rendered conversation.
        params: sampling.
        parser: makes what tells thoughts and tool calls from text; None where there is only text.
        reasoning: how thoughts are marked in this answer; None where there are none.
    """

    token_ids: list[int]
    params: SamplingParams
    parser: Callable[[], OutputParser] | None
    reasoning: ReasoningFormat | None


@router.post(
    ROUTE,
    openapi_extra=openapi_body(ChatRequest),
    responses=openapi_answers(streams=True),
    response_model=None,
)
async def chat_completions(request: Request, key: Annotated[str, Depends(caller_key)]) -> Response:
    """Answer a conversation, at once or as a stream."""
    server = server_of(request)
    body = await read_body(request, ChatRequest, CHAT)
    model = server.model_name if body.model is None else body.model
    server.check_model(model)
    check_together(body)
    async with AsyncExitStack() as held:
        generation = Generation(server, request, key, ROUTE, FIELDS, _names(body))
        await held.enter_async_context(generation)
        ready = await generation.prepared(partial(_prepare, server, body))
        await generation.start([Job(ready.token_ids, ready.params, body.priority or 0)])
        frame = Frame(
            f"chatcmpl-{generation.id}", "chat.completion", int(time.time()), model, server.fingerprint
        )
        answer = ChatAnswer(
            frame,
            body,
            ready.token_ids,
            ready.params.seed,
            ready.parser,
            server.llm.token_bytes,
            ready.reasoning,
        )
        if body.stream:
            return EventStream(
                answer.stream(generation.events()), held.pop_all(), server.settings.keep_alive_s
            )
        (result,) = await generation.results()
        return JSONResponse(answer.whole(result))


def _names(body: ChatRequest) -> dict[str, str]:
    """The engine's names of fields that this route calls otherwise."""
    names = {"prompt": "messages", "logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    if body.response_format is not None:
        names["structured_outputs.json"] = "response_format.json_schema.schema"
    if body.structured_outputs is None and body.tools:
        names["structured_outputs.grammar"] = "tools"  # in which the schemas of the functions are
    return names


def _prepare(server: ServerState, body: ChatRequest) -> Prepared:
    """Everything that takes a while: schemas, the template, the tokenizer."""
    messages = checked_messages(body.messages)
    options = chat_options(body)
    reasoning = server.reasoning
    if reasoning is not None:
        reasoning = as_opened(reasoning, server.llm, messages, options)
    marked = reasoning is not None and reasoning.hidden
    plan = _plan(server, body, reasoning)
    needs = FromPlan(keep_special_tokens=marked)
    if plan is not None:
        messages = plan.messages_with_tools(messages)
        options = replace(options, tools=plan.template_tools)
        shown = marked or not plan.skip_special_tokens
        needs = FromPlan(plan.structured_outputs, tuple(plan.stop), shown)
    elif server.tools is not None:  # earlier calls and their results still have to reach the template
        messages = ToolPlan(server.tools, (), None, None).messages_with_tools(messages)
    params = chat_params(body, server.llm.max_model_len, usual_temperature(server.llm), needs)
    check_size(params.n, server.settings.max_choices, "n")
    token_ids = server.llm.encode_chat(messages, options)
    parser = None
    if plan is not None or reasoning is not None:
        parser = partial(OutputParser, reasoning, plan)
    return Prepared(token_ids, params, parser, reasoning)


def _plan(server: ServerState, body: ChatRequest, reasoning: ReasoningFormat | None) -> ToolPlan | None:
    """How functions are offered and calls are read; None where there are none."""
    if body.tools is not None and not isinstance(body.tools, list):
        raise ServerError("DP631", "tools must be a list of functions", "tools")
    if not body.tools:
        if body.tool_choice not in (None, "none", "auto"):
            raise ServerError("DP636", "tool_choice does not stand alone: give tools with it", "tool_choice")
        return None
    if server.tools is None:
        raise ServerError("DP633", "tools is not supported: this model has no chat template", "tools")
    return plan_tools(server.tools, body.tools, body.tool_choice, body.parallel_tool_calls, reasoning)
