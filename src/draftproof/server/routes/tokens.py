"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from draftproof.engine.chat_options import ChatOptions
from draftproof.errors import RequestError, ServerError
from draftproof.server.auth import caller_key
from draftproof.server.protocol import (
    DetokenizeRequest,
    TokenizeRequest,
    checked_messages,
    openapi_answers,
    openapi_body,
    read_body,
)
from draftproof.server.protocol.faults import renamed
from draftproof.server.protocol.gone import QuietRoute
from draftproof.server.sampling import checked_variables
from draftproof.server.state import ServerState, server_of
from draftproof.server.tools.plan import plan_tools

router = APIRouter(route_class=QuietRoute)


@router.post(
    "/tokenize", openapi_extra=openapi_body(TokenizeRequest), responses=openapi_answers(), response_model=None
)
async def tokenize(request: Request, key: Annotated[str, Depends(caller_key)]) -> Response:
    """The token ids of a text or a conversation, as the completion routes would see them. No limit of length applies."""
    server = server_of(request)
    body = await read_body(request, TokenizeRequest)
    server.check_model(server.model_name if body.model is None else body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ServerError("DP636", "give either prompt or messages, got both or none of them", "prompt")
    return JSONResponse(await asyncio.to_thread(partial(_tokenized, server, body)))


@router.post(
    "/detokenize",
    openapi_extra=openapi_body(DetokenizeRequest),
    responses=openapi_answers(),
    response_model=None,
)
async def detokenize(request: Request, key: Annotated[str, Depends(caller_key)]) -> Response:
    """The text of token ids, special tokens included."""
    server = server_of(request)
    body = await read_body(request, DetokenizeRequest)
    server.check_model(server.model_name if body.model is None else body.model)
    size = server.llm.target.info.vocab_size
    for index, token in enumerate(body.tokens):
        if token >= size:
            param = f"tokens.{index}"
            raise ServerError("DP403", f"{param} must be in 0..{size - 1}, got {token}", param)
    return JSONResponse({"prompt": await asyncio.to_thread(server.llm.decode, body.tokens)})


def _tokenized(server: ServerState, body: TokenizeRequest) -> dict[str, Any]:
    tokens = _of_prompt(server, body) if body.messages is None else _of_messages(server, body)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": server.llm.max_model_len,
        "tokens": tokens,
        "token_strs": None,
    }
    if body.return_token_strs:
        answer["token_strs"] = server.llm.token_texts(tokens)
    return answer


def _of_prompt(server: ServerState, body: TokenizeRequest) -> list[int]:
    special = body.add_special_tokens is not False
    return list(server.llm.tokenizer(body.prompt, add_special_tokens=special)["input_ids"])


def _of_messages(server: ServerState, body: TokenizeRequest) -> list[int]:
    messages, tools = checked_messages(body.messages), None
    if body.tools:
        if server.tools is None:
            raise ServerError("DP633", "tools is not supported: this model has no chat template", "tools")
        plan = plan_tools(server.tools, body.tools, None, None)
        messages, tools = plan.messages_with_tools(messages), plan.template_tools
    continued = bool(body.continue_final_message)
    opened = not continued if body.add_generation_prompt is None else body.add_generation_prompt
    if continued and opened:
        raise ServerError(
            "DP636",
            "continue_final_message and add_generation_prompt exclude each other: a turn is opened or continued",
            "continue_final_message",
        )
    options = ChatOptions(
        tools=tools,
        add_generation_prompt=opened,
        continue_final_message=continued,
        template_kwargs=checked_variables(body.chat_template_kwargs or {}),
    )
    try:
        text = server.llm.render_chat(messages, options)
    except RequestError as error:
        raise renamed(error, frozenset(TokenizeRequest.model_fields), {"prompt": "messages"}) from error
    special = bool(body.add_special_tokens)
    return list(server.llm.tokenizer(text, add_special_tokens=special)["input_ids"])
