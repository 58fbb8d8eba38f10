"""User-visible errors: codes, messages and explanations. Imports nothing of the rest of the package."""

from draftproof.errors.base import (
    ContractError,
    DrafterError,
    DraftproofError,
    DraftproofWarning,
    EngineError,
    ModelError,
    RequestError,
    ServerError,
)
from draftproof.errors.catalog import ALL, explanation
from draftproof.errors.explanation import Explanation

__all__ = [
    "ALL",
    "ContractError",
    "DrafterError",
    "DraftproofError",
    "DraftproofWarning",
    "EngineError",
    "Explanation",
    "ModelError",
    "RequestError",
    "ServerError",
    "explanation",
]
