"""What is known of the target that a drafter's config may have got wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any

from draftproof.audit.doctor.corrections import TargetFacts
from draftproof.audit.doctor.pair import Pair
from draftproof.audit.doctor.texts import styles_of
from draftproof.engine import LLM
from draftproof.models.executor import precision_of

_ROOT_SCALED = ("gemma",)
"""Families whose code multiplies embedding rows by the root of the hidden size, without a field that says so."""


def facts_of(pair: Pair) -> TargetFacts:
    """The facts, from the loaded target, its config and its tokenizer."""
    info = pair.llm.target.info
    text = None if pair.config is None else pair.config.get_text_config()
    integers = precision_of(pair.llm.target) in ("int8", "int4")
    return TargetFacts(
        num_layers=info.num_layers,
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        rope=_rope(text),
        embedding_scale=_embedding_scale(text, info.model_type, info.hidden_size),
        mask_candidates=tuple(dict.fromkeys(_mask_candidates(pair.llm))),
        styles=styles_of(pair.llm),
        other_precisions=("bfloat16",) if integers and pair.reload is not None else (),
    )


def _rope(text: Any) -> Mapping[str, Any]:
    rope = getattr(text, "rope_parameters", None)
    if not isinstance(rope, Mapping) or any(isinstance(part, Mapping) for part in rope.values()):
        return {}
    return {key: value for key, value in rope.items() if value is not None}


def _embedding_scale(text: Any, model_type: str, hidden: int) -> float | None:
    if model_type.startswith(_ROOT_SCALED):
        return sqrt(hidden)
    scale = getattr(text, "embedding_multiplier", None) or getattr(text, "scale_emb", None)
    return float(scale) if isinstance(scale, (int, float)) else None


def _mask_candidates(llm: LLM) -> Iterator[int]:
    """Likeliest first: what is called a mask, the first row no token uses, then every other special token."""
    tokenizer, vocabulary = llm.tokenizer, llm.target.info.vocab_size
    added: Mapping[str, int] = tokenizer.get_added_vocab()
    own = (getattr(tokenizer, f"{name}_token_id", None) for name in ("mask", "pad", "unk", "eos", "bos"))
    candidates = [
        *(number for name, number in added.items() if "mask" in name.lower()),
        *own,
        len(tokenizer),
        vocabulary - 1,
        0,
        *sorted(set(tokenizer.all_special_ids) | set(added.values())),
    ]
    yield from (int(token) for token in candidates if token is not None and 0 <= token < vocabulary)
