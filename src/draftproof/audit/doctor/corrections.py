"""What may be wrong between a target and a drafter, kind by kind, as other ways of putting the two together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isclose, sqrt
from typing import Any

from draftproof.audit.doctor.setup import Order, Setup
from draftproof.audit.doctor.texts import RAW
from draftproof.models.drafters.config import default_taps

_BASES = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0)
"""RoPE bases in wide use: Llama 2 and most code's default, SmolLM2, Llama 3, Qwen 2 and 3."""
_MOST_MASKS = 24


@dataclass(frozen=True)
class TargetFacts:
    """What corrections need to know of the target.

    Attributes:
        num_layers, hidden_size, vocab_size: its sizes.
        rope: its own RoPE settings with ``rope_theta``; empty where they are not known or differ by layer.
        embedding_scale: factor that its own code puts on embedding rows; None where there is none.
        mask_candidates: tokens that might be the mask, likeliest first.
        styles: ways to put a prompt to it.
        other_precisions: precisions in which it can be loaded instead, where it now computes in integers.
    """

    num_layers: int
    hidden_size: int
    vocab_size: int
    rope: Mapping[str, Any]
    embedding_scale: float | None
    mask_candidates: tuple[int, ...]
    styles: tuple[str, ...]
    other_precisions: tuple[str, ...]


@dataclass(frozen=True)
class Correction:
    """One other way.

    Attributes:
        kind: one of `KINDS`.
        name: what is done, for the table.
        cause: what must be wrong if this helps.
        remedy: how to make it permanent.
        setup: the pair, put together this way.
    """

    kind: str
    name: str
    cause: str
    remedy: str
    setup: Setup


def corrections(setup: Setup, facts: TargetFacts, kinds: tuple[str, ...]) -> list[Correction]:
    """Everything plausible that differs from a setup in one point."""
    return [correction for kind in kinds for correction in _MAKERS[kind](setup, facts)]


def taps_of(setup: Setup, facts: TargetFacts) -> tuple[int, ...] | None:
    """The taps, the layout's default where the config names none; None where it is no list of layers."""
    taps = setup.field("target_layer_ids")
    if taps is None:
        layers = setup.field("num_hidden_layers")
        depth = setup.field("num_target_layers") or facts.num_layers
        return default_taps(layers, depth) if isinstance(layers, int) and depth >= 4 else None
    whole = isinstance(taps, list) and all(isinstance(tap, int) for tap in taps)
    return tuple(taps) if whole and taps else None


def _taps(setup: Setup, facts: TargetFacts) -> Iterator[Correction]:
    taps = taps_of(setup, facts)
    if taps is None:
        return
    one_lower, one_higher = tuple(tap - 1 for tap in taps), tuple(tap + 1 for tap in taps)
    spread = default_taps(len(taps), facts.num_layers) if facts.num_layers >= 4 else taps
    named = (
        (
            "one lower",
            one_lower,
            "its taps count layers one too high, as speculators and GGUF files do",
        ),
        (
            "one higher",
            one_higher,
            "its taps count layers one too low, as when one has been subtracted twice",
        ),
        ("in ascending order", tuple(sorted(taps)), "its taps are not in the order in which it takes them"),
        ("the layout's default", spread, "its taps are not the layers it was trained on"),
    )
    tried = {taps}
    for name, other, cause in named:
        if other in tried or not all(0 <= tap < facts.num_layers for tap in other):
            continue
        tried.add(other)
        listed = ", ".join(map(str, other))
        yield Correction(
            "taps",
            f"taps {name}: {listed}",
            cause,
            f"set dflash_config.target_layer_ids to [{listed}] in its config.json",
            setup.with_own("target_layer_ids", list(other)),
        )


def _rope_style(setup: Setup, facts: TargetFacts) -> Iterator[Correction]:
    del facts
    styles: tuple[tuple[Order, str], ...] = (
        (
            "pairs to halves",
            "its rotary embedding pairs channel 2i with 2i + 1, while the layout pairs i with i + head_dim / 2",
        ),
        (
            "halves to pairs",
            "its q and k channels were reordered for the other rotary style although they had the layout's own",
        ),
    )
    for order, cause in styles:
        for gains in (True, False):
            parts = "q, k and their norms" if gains else "q and k, not their norms"
            yield Correction(
                "rope-style",
                f"RoPE style: {parts}, {order}",
                cause,
                f"reorder the channels of every head of {parts}, {order}, and save the weights",
                replace(setup, order=order, gains=gains),
            )


def _rope(setup: Setup, facts: TargetFacts) -> Iterator[Correction]:
    """Other bases, and the target's scaling or none."""
    now = _rope_now(setup)
    own = facts.rope.get("rope_theta")
    bases = [*([float(own)] if own else []), *_BASES]
    for base in dict.fromkeys(bases):
        if now.get("rope_theta") is not None and isclose(base, float(now["rope_theta"])):
            continue
        whose = " (the target's)" if own and base == float(own) else ""
        yield Correction(
            "rope",
            f"RoPE base {base:.0f}{whose}",
            "its RoPE base is not the one it was trained with",
            f"set rope_theta to {base:.0f} in its config.json",
            setup.with_rope(base),
        )
    theta = now.get("rope_theta") or own
    target_kind, kind = facts.rope.get("rope_type", "default"), now.get("rope_type", "default")
    if theta is None:
        return
    if kind != "default":
        yield Correction(
            "rope",
            f"RoPE without its {kind} scaling",
            f"its config scales RoPE by {kind}, and it was trained without",
            "remove the scaling from its rope_parameters",
            setup.with_rope(float(theta), {}),
        )
    if target_kind not in ("default", kind):
        yield Correction(
            "rope",
            f"RoPE with the target's {target_kind} scaling",
            "it was trained with the target's RoPE scaling, which its config leaves out",
            "copy the target's rope_parameters into its config.json",
            setup.with_rope(float(own or theta), facts.rope),
        )


def _rope_now(setup: Setup) -> dict[str, Any]:
    """The drafter's RoPE fields in one mapping."""
    merged: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        part = setup.config.get(name)
        merged |= part if isinstance(part, Mapping) else {}
    if "type" in merged:
        merged.setdefault("rope_type", merged["type"])
    if setup.config.get("rope_theta") is not None:
        merged["rope_theta"] = setup.config["rope_theta"]
    return {key: value for key, value in merged.items() if value is not None}


def _mask(setup: Setup, facts: TargetFacts) -> Iterator[Correction]:
    for token in facts.mask_candidates[:_MOST_MASKS]:
        if token == setup.field("mask_token_id") or not 0 <= token < facts.vocab_size:
            continue
        yield Correction(
            "mask",
            f"mask token {token}",
            "its mask token is not the one it was trained with",
            f"set dflash_config.mask_token_id to {token} in its config.json",
            setup.with_own("mask_token_id", token),
        )


def _scale(setup: Setup, facts: TargetFacts) -> Iterator[Correction]:
    now = setup.field("input_embedding_scale")
    now = 1.0 if now is None else now
    root = sqrt(facts.hidden_size)
    named = (
        (1.0, "1"),
        (root, f"the root of the hidden size, {root:.2f}"),
        (facts.embedding_scale, "the target's"),
    )
    tried = [now]
    for scale, name in named:
        if scale is None or any(isclose(scale, other, rel_tol=0.01) for other in tried):
            continue
        tried.append(scale)
        yield Correction(
            "scale",
            f"embedding scale {name}",
            "its input embedding is scaled otherwise than in training",
            f"set dflash_config.input_embedding_scale to {scale:.6g} in its config.json",
            setup.with_own("input_embedding_scale", scale),
        )


def _attention(setup: Setup, facts: TargetFacts) -> Iterator[Correction]:
    del facts
    override = setup.config.get("is_causal")
    override = setup.field("causal") if override is None else override
    types = setup.field("layer_types") or ()
    now = (
        {bool(override)}
        if override is not None
        else {kind == "sliding_attention" for kind in types} or {False}
    )
    for causal in (True, False):
        if now == {causal}:
            continue
        seen = "no later ones" if causal else "later ones too"
        yield Correction(
            "attention",
            f"slots see {seen}",
            f"it was trained with slots that see {seen}",
            f"set is_causal to {str(causal).lower()} in its config.json",
            setup.with_top("is_causal", causal),
        )


def _block(setup: Setup, facts: TargetFacts) -> Iterator[Correction]:
    del facts
    size = setup.block_size or setup.field("block_size")
    if not isinstance(size, int):
        return
    for shorter in dict.fromkeys((size // 2, size // 4, size // 8)):
        if shorter >= 2:
            yield shorter_block(setup, shorter)


def shorter_block(setup: Setup, size: int) -> Correction:
    """A block cut to `size`, anchor included."""
    return Correction(
        "block",
        f"block size {size}",
        "its block is longer than the one it was trained on",
        f"set block_size to {size} in its config.json, or pass it when loading",
        replace(setup, block_size=size),
    )


def _template(setup: Setup, facts: TargetFacts) -> Iterator[Correction]:
    for style in facts.styles:
        if style == setup.style:
            continue
        remedy = (
            "put prompts without the chat template (--raw), or train it on conversations"
            if style == RAW
            else f"put prompts with the {style}, or train it on text like yours"
        )
        yield Correction(
            "template",
            f"prompts with {style}" if style != RAW else "prompts without the chat template",
            "it was trained on text that your prompts do not look like",
            remedy,
            replace(setup, style=style),
        )


def _precision(setup: Setup, facts: TargetFacts) -> Iterator[Correction]:
    for precision in facts.other_precisions:
        if precision == setup.precision:
            continue
        yield Correction(
            "precision",
            f"target in {precision}",
            f"the target computes in {setup.precision}, and its hidden states are no longer those it was trained on",
            f"load the target with dtype {precision}, or train the drafter with the target in {setup.precision}",
            replace(setup, precision=precision),
        )


_MAKERS: dict[str, Callable[[Setup, TargetFacts], Iterator[Correction]]] = {
    "taps": _taps,
    "rope": _rope,
    "rope-style": _rope_style,
    "mask": _mask,
    "scale": _scale,
    "attention": _attention,
    "block": _block,
    "template": _template,
    "precision": _precision,
}
KINDS = tuple(_MAKERS)
"""Kinds of correction, in the order in which they are tried."""
