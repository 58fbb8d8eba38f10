"""draftproof: lossless speculative decoding with block-diffusion (DFLASH) drafters.

The names below are loaded on first use, so that `import draftproof.verify` needs nothing but torch and numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.engine import LLM, AsyncEngine, EngineOptions, RequestResult, StreamEvent
    from draftproof.errors import DraftproofError
    from draftproof.sampling import SamplingParams, StructuredOutputs

__version__ = "0.1.0"

_HOMES = {
    "LLM": "draftproof.engine",
    "AsyncEngine": "draftproof.engine",
    "EngineOptions": "draftproof.engine",
    "RequestResult": "draftproof.engine",
    "StreamEvent": "draftproof.engine",
    "SamplingParams": "draftproof.sampling",
    "StructuredOutputs": "draftproof.sampling",
    "DraftproofError": "draftproof.errors",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "DraftproofError",
    "EngineOptions",
    "RequestResult",
    "SamplingParams",
    "StreamEvent",
    "StructuredOutputs",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
