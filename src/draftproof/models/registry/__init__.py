"""Models by name: from what the user typed to a checked folder with a model in it.

Imports neither torch nor transformers until a model really has to be converted.
"""

from draftproof.models.registry.cache import (
    CachedModel,
    cache_root,
    list_cached,
    remove_cached,
    verify_cached,
)
from draftproof.models.registry.folder import check_model_folder
from draftproof.models.registry.known import KNOWN_MODELS, KnownModel, WheelSource, find_known
from draftproof.models.registry.progress import ConsoleProgress, Progress, SilentProgress
from draftproof.models.registry.resolve import ResolvedModel, resolve_model

__all__ = [
    "KNOWN_MODELS",
    "CachedModel",
    "ConsoleProgress",
    "KnownModel",
    "Progress",
    "ResolvedModel",
    "SilentProgress",
    "WheelSource",
    "cache_root",
    "check_model_folder",
    "find_known",
    "list_cached",
    "remove_cached",
    "resolve_model",
    "verify_cached",
]
