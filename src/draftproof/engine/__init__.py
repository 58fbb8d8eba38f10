"""The engine: requests in, tokens out, drafting in between."""

from draftproof.engine.llm import LLM
from draftproof.engine.results import PhaseSeconds, RequestResult, RequestStats, StreamEvent, TextPiece

__all__ = ["LLM", "PhaseSeconds", "RequestResult", "RequestStats", "StreamEvent", "TextPiece"]
