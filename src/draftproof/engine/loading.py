"""From a name or folder to what an engine runs: target, tokenizer, sampling defaults, drafter."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from draftproof.engine.detokenize import TokenKinds
from draftproof.errors import DrafterError, DraftproofWarning, ModelError, RequestError
from draftproof.models.drafters import load_drafter
from draftproof.models.drafters.base import Drafter
from draftproof.models.drafters.shipped import default_drafter
from draftproof.models.executor import TargetModel, load_target, without_fused
from draftproof.models.linear import Route
from draftproof.models.loading import read_config
from draftproof.models.registry import resolve_model
from draftproof.models.target import Target, TargetOptions
from draftproof.sampling import SamplingDefaults

LOSSLESS = ("auto", "strict")
"""`strict` refuses a machine or model on which rows aren't bit-identical in any company; `auto` warns."""


@dataclass(frozen=True)
class Loaded:
    """A target and what came with it.

    Attributes:
        target: the model.
        tokenizer: a Transformers tokenizer.
        token_kinds: what the detokeniser needs to know of it.
        defaults: sampling fields the model brings along.
        end_token_ids: its end tokens.
        row_invariant: whether the start-up self-test found this machine lossless token for token.
    """

    target: TargetModel
    tokenizer: Any
    token_kinds: TokenKinds
    defaults: SamplingDefaults
    end_token_ids: frozenset[int]
    row_invariant: bool


def load(path: Path, name: str, options: TargetOptions, lossless: str = "auto") -> Loaded:
    """Load a target and make it as lossless as this machine allows.

    The self-test decides how it computes: the fused executor, else the Transformers executor with packed linears and
    compiled attention, else with plain attention, else with products in fixed tiles.

    Raises:
        ModelError: DP2xx, it cannot be used; DP264, it is not row-invariant here and `lossless` is ``"strict"``.
        RequestError: DP450, `lossless` is neither ``"auto"`` nor ``"strict"``.
    """
    check_lossless(lossless)
    target = load_target(path, name, options)
    sound = _settle(target)
    for other in _next_best(target, options):
        if sound:
            break
        target = load_target(path, name, other)
        sound = _settle(target)
    insist(sound, name, lossless)
    tokenizer = _tokenizer(path, name, options.trust_remote_code)
    defaults, end_token_ids = _generation_defaults(path, name, options.trust_remote_code, tokenizer)
    return Loaded(target, tokenizer, TokenKinds.of(tokenizer), defaults, end_token_ids, sound)


def _next_best(target: TargetModel, options: TargetOptions) -> list[TargetOptions]:
    """What to try when this target fails the self-test, in order."""
    tiles = replace(options, route=Route.TILES)
    if isinstance(target, Target):
        return [tiles] if target.route is Route.PACKED else []
    plain = without_fused(options)
    return [] if plain is None else [plain, tiles]


def _settle(target: TargetModel) -> bool:
    """The self-test, with the plain form of attention where the compiled one fails it."""
    if target.self_test():
        return True
    if not isinstance(target, Target) or not target.has_compiled_attention:
        return False
    target.use_plain_attention()
    return target.self_test()


def check_lossless(lossless: str) -> None:
    """Raises `RequestError` DP450 for an unknown value."""
    if lossless not in LOSSLESS:
        raise RequestError("DP450", f"lossless must be 'auto' or 'strict', got {lossless!r}")


def insist(sound: bool, name: str, lossless: str) -> None:
    """Warn, or with ``lossless="strict"`` refuse, where the self-test failed.

    Raises:
        ModelError: DP264.
    """
    if sound:
        return
    finding = (
        f"{name}: on this machine rows are not bit-identical in different company, "
        "so output is lossless in distribution only"
    )
    if lossless == "strict":
        raise ModelError("DP264", f"{finding}; lossless='strict' refuses that, lossless='auto' warns")
    warnings.warn(
        f"{finding}: drafting may change single tokens where two are almost equally likely",
        DraftproofWarning,
        stacklevel=4,
    )


def _tokenizer(path: Path, name: str, trust_remote_code: bool) -> Any:
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # tokenizers raise whatever their files make them
        first_line = str(error).strip().splitlines()[:1]
        raise ModelError("DP261", f"cannot load the tokenizer of {name}: {''.join(first_line)}") from error


def _generation_defaults(
    path: Path, name: str, trust_remote_code: bool, tokenizer: Any
) -> tuple[SamplingDefaults, frozenset[int]]:
    """Sampling defaults and end tokens: of the generation config, else of the model's config and tokenizer."""
    model_config = read_config(path, name, trust_remote_code)
    own = _ids(getattr(model_config, "eos_token_id", None)) or _ids(tokenizer.eos_token_id)
    try:
        config = GenerationConfig.from_pretrained(path)
    except OSError:
        return SamplingDefaults(), own
    return SamplingDefaults.from_generation_config(config.to_diff_dict()), _ids(config.eos_token_id) or own


def _ids(ids: int | list[int] | None) -> frozenset[int]:
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def make_drafter(
    drafter: str | Path | Drafter | None, target: TargetModel, block_size: int | None
) -> Drafter | None:
    """A drafter from its name, folder or hub id, or a ready-made one, checked.

    Raises:
        DrafterError: it cannot be read or does not fit (DP3xx).
        DrafterError: DP548, DP549, ``"default"`` where the package has none for the target.
    """
    if drafter is None:
        return None
    if not isinstance(drafter, (str, Path)):
        return _ready_made(drafter, block_size)
    return load_drafter(find_drafter(drafter, target.name), target.info, block_size)


def find_drafter(drafter: str | Path, target: str) -> str | Path:
    """Where a drafter lies: ``"ngram"`` as it is, ``"default"`` in the package, else a folder or what a hub id gives.

    Args:
        drafter: as for `LLM`; a folder called ``default`` is reached with ``./`` before it.
        target: the target's name.

    Raises:
        DrafterError: DP301, there is nothing of that name; DP548, DP549, there is no default drafter for this target.
        ModelError: a hub id that cannot be fetched (DP2xx).
    """
    if drafter == "default":
        return default_drafter(target)
    if drafter == "ngram" or Path(drafter).exists():
        return drafter
    try:
        return resolve_model(str(drafter)).path
    except ModelError as error:
        if error.code != "DP200":
            raise
        raise DrafterError(
            "DP301",
            f"no drafter {str(drafter)!r}: it is neither 'ngram', 'default', a folder, nor a hub id (owner/name)",
        ) from None


def _ready_made(drafter: Drafter, block_size: int | None) -> Drafter:
    """A drafter object, checked for what the engine will ask of it."""
    needed = (
        "max_draft_tokens",
        "tap_layer_ids",
        "page_bytes",
        "new_pages",
        "new_state",
        "extend",
        "propose",
    )
    lacking = [name for name in needed if not hasattr(drafter, name)]
    if lacking or block_size is not None:
        problem = (
            f"a {type(drafter).__name__} without {', '.join(lacking)}"
            if lacking
            else "block_size beside a drafter object"
        )
        raise DrafterError(
            "DP317",
            f"drafter must be None, 'ngram', a folder, a hub id or a Drafter object of its own block size, got {problem}",
        )
    return drafter
