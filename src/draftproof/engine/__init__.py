"""The engine: requests in, tokens out, drafting in between."""

from draftproof.engine.async_engine import AsyncEngine, RequestStream
from draftproof.engine.chat_options import ChatOptions
from draftproof.engine.core import EngineOptions
from draftproof.engine.llm import LLM
from draftproof.engine.metrics import Metrics
from draftproof.engine.results import (
    Choice,
    PhaseSeconds,
    RequestResult,
    RequestStats,
    StreamEvent,
    TextPiece,
)

__all__ = [
    "LLM",
    "AsyncEngine",
    "ChatOptions",
    "Choice",
    "EngineOptions",
    "Metrics",
    "PhaseSeconds",
    "RequestResult",
    "RequestStats",
    "RequestStream",
    "StreamEvent",
    "TextPiece",
]
