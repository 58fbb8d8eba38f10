"""draftproof: lossless speculative decoding with block-diffusion (DFLASH) drafters.

The names below are loaded on first use, so that `import draftproof.verify` needs nothing but torch and numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.engine import LLM, RequestResult, StreamEvent
    from draftproof.errors import DraftproofError
    from draftproof.sampling import SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "LLM": "draftproof.engine",
    "RequestResult": "draftproof.engine",
    "StreamEvent": "draftproof.engine",
    "SamplingParams": "draftproof.sampling",
    "DraftproofError": "draftproof.errors",
}

__all__ = ["LLM", "DraftproofError", "RequestResult", "SamplingParams", "StreamEvent", "__version__"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
