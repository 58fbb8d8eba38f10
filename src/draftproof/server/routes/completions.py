"""`POST /v1/completions`."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from draftproof.sampling import SamplingParams
from draftproof.server.auth import caller_key
from draftproof.server.generation import Generation, Job
from draftproof.server.protocol import (
    CompletionRequest,
    listed_prompts,
    openapi_answers,
    openapi_body,
    read_body,
)
from draftproof.server.protocol.answers import Frame
from draftproof.server.protocol.completion_answer import CompletionAnswer
from draftproof.server.protocol.gone import QuietRoute
from draftproof.server.protocol.refused import COMPLETIONS
from draftproof.server.sampling import check_size, check_together, completion_params, usual_temperature
from draftproof.server.state import ServerState, server_of
from draftproof.server.streaming import EventStream

router = APIRouter(route_class=QuietRoute)
ROUTE = "/v1/completions"
FIELDS = frozenset(CompletionRequest.model_fields)


@dataclass(frozen=True)
class Prepared:
    """A completion request ready for the engine.

    Attributes:
        prompts: token ids.
        texts: of the prompts, or None where they are not to be echoed.
        params: sampling, of each prompt.
    """

    prompts: list[list[int]]
    texts: list[str] | None
    params: SamplingParams


@router.post(
    ROUTE,
    openapi_extra=openapi_body(CompletionRequest),
    responses=openapi_answers(streams=True),
    response_model=None,
)
async def completions(request: Request, key: Annotated[str, Depends(caller_key)]) -> Response:
    """Continue one prompt or several, at once or as a stream."""
    server = server_of(request)
    body = await read_body(request, CompletionRequest, COMPLETIONS)
    model = server.model_name if body.model is None else body.model
    server.check_model(model)
    check_together(body)
    async with AsyncExitStack() as held:
        generation = Generation(server, request, key, ROUTE, FIELDS, _names(body))
        await held.enter_async_context(generation)
        ready = await generation.prepared(partial(_prepare, server, body))
        await generation.start([Job(prompt, ready.params, body.priority or 0) for prompt in ready.prompts])
        frame = Frame(f"cmpl-{generation.id}", "text_completion", int(time.time()), model, server.fingerprint)
        answer = CompletionAnswer(
            frame,
            body,
            ready.prompts,
            ready.texts,
            ready.params.n,
            ready.params.seed,
            server.llm.token_bytes,
            hidden=body.max_tokens == 0,
        )
        if body.stream:
            return EventStream(
                answer.stream(generation.events()), held.pop_all(), server.settings.keep_alive_s
            )
        return JSONResponse(answer.whole(await generation.results()))


def _names(body: CompletionRequest) -> dict[str, str]:
    """The engine's names of fields that this route calls otherwise."""
    return (
        {}
        if body.response_format is None
        else {"structured_outputs.json": "response_format.json_schema.schema"}
    )


def _prepare(server: ServerState, body: CompletionRequest) -> Prepared:
    """Everything that takes a while: schemas and the tokenizer."""
    asked = listed_prompts(body.prompt)
    params = completion_params(body, usual_temperature(server.llm))
    check_size(params.n * len(asked), server.settings.max_choices, "n" if len(asked) == 1 else "prompt")
    special = body.add_special_tokens is not False
    prompts = [_encode(server, prompt, special) for prompt in asked]
    texts = None
    if body.echo:
        pairs = zip(asked, prompts, strict=True)
        texts = [prompt if isinstance(prompt, str) else server.llm.decode(ids) for prompt, ids in pairs]
    return Prepared(prompts, texts, params)


def _encode(server: ServerState, prompt: str | list[int], special: bool) -> list[int]:
    if isinstance(prompt, str) and not special:
        prompt = list(server.llm.tokenizer(prompt, add_special_tokens=False)["input_ids"])
    return server.llm.encode(prompt)
