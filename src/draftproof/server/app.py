"""The server as an ASGI app, put together."""

from __future__ import annotations

import time

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from draftproof import __version__
from draftproof.engine import LLM, AsyncEngine
from draftproof.server.admission import Admission
from draftproof.server.errors import install_errors
from draftproof.server.metrics import ServerMetrics
from draftproof.server.middleware import Access, BodyLimit, Guard
from draftproof.server.reasoning import ReasoningFormat, detect_reasoning, reasoning_format
from draftproof.server.routes import chat, completions, explain, health, metrics, models, playground, tokens
from draftproof.server.settings import ServerSettings
from draftproof.server.state import ServerState, fingerprint_of
from draftproof.server.tools.formats import ToolFormat, detect_tool_format, of_tokenizer, tool_format
from draftproof.server.tracing import Tracing, tracing_to


def create_app(
    engine: AsyncEngine, settings: ServerSettings | None = None, tracing: Tracing | None = None
) -> FastAPI:
    """An OpenAI-compatible server around an engine.

    Args:
        engine: answers the requests; whoever made it closes it.
        settings: the defaults when None.
        tracing: makes spans; None: by `settings.otlp_traces_endpoint`.

    Raises:
        ServerError: DP615, traces cannot be sent; DP661, DP670, a tool or reasoning format of that name does not exist.
    """
    state = make_state(engine, settings or ServerSettings())
    endpoint = state.settings.otlp_traces_endpoint
    if tracing is None and endpoint is not None:
        tracing = tracing_to(endpoint, state.model_name)
    state.tracing = tracing
    app = FastAPI(
        title="draftproof",
        version=__version__,
        root_path=state.settings.root_path,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        middleware=_middleware(state),
    )
    app.state.server = state
    install_errors(app)
    for router in _routers(state.settings):
        app.include_router(router)
    return app


def make_state(engine: AsyncEngine, settings: ServerSettings) -> ServerState:
    """Everything the routes share."""
    llm = engine.llm
    admission = Admission(
        llm.options.max_num_seqs,
        settings.max_queue,
        settings.max_concurrent_per_key,
        lambda: engine.waiting,
        lambda: engine.healthy,
    )
    names = settings.served_model_names
    return ServerState(
        engine=engine,
        llm=llm,
        settings=settings,
        admission=admission,
        metrics=ServerMetrics(names[0] if names else llm.target.name, lambda: engine.metrics),
        tools=_tools(llm, settings),
        reasoning=_reasoning(llm, settings),
        fingerprint=fingerprint_of(llm, __version__),
        started=int(time.time()),
    )


def _tools(llm: LLM, settings: ServerSettings) -> ToolFormat | None:
    if not getattr(llm.tokenizer, "chat_template", None):
        return None
    if settings.tool_format:
        return of_tokenizer(tool_format(settings.tool_format), llm.tokenizer)
    return detect_tool_format(llm.tokenizer)


def _reasoning(llm: LLM, settings: ServerSettings) -> ReasoningFormat | None:
    if settings.reasoning_format:
        return reasoning_format(settings.reasoning_format, llm.tokenizer)
    return detect_reasoning(llm.tokenizer)


def _middleware(state: ServerState) -> list[Middleware]:
    """From the outside in. Errors, too, must carry an id and be readable for the pages that may call."""
    settings = state.settings
    layers = [Middleware(Access, metrics=state.metrics, lines=settings.access_log)]
    if settings.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        )
    layers.append(Middleware(Guard))
    layers.append(
        Middleware(
            BodyLimit,
            most=settings.max_body_bytes,
            seconds=settings.body_timeout_s,
            keep=settings.log_prompts,
        )
    )
    return layers


def _routers(settings: ServerSettings) -> list[APIRouter]:
    routes = (chat, completions, models, tokens, health, explain, metrics)
    return [module.router for module in (*routes, *([playground] if settings.playground else []))]
