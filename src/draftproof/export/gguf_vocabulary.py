"""A target's vocabulary as the keys of a GGUF file: copied from the target's own GGUF, or made from a tokenizer.

llama.cpp drafts with token ids alone, so what counts is that every id is there and the mask token is named. How text
is split before merging (``tokenizer.ggml.pre``) is of no consequence in a drafter and is left at ``default`` where it is
not copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.errors import RequestError
from draftproof.export.target import ExportTarget

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
"""Token types of the GGUF format."""


@dataclass(frozen=True)
class Entry:
    """One key: a value, and the GGUF type of it (and of its elements, for a list), where Python's own says too little."""

    key: str
    value: Any
    kind: int | None = None
    element: int | None = None


def vocabulary(target: ExportTarget, vocab_size: int, mask_token_id: int) -> list[Entry]:
    """All ``tokenizer.*`` keys of a drafter's file.

    Args:
        target: whose vocabulary it is.
        vocab_size: rows of the drafter's logits; tokens beyond the tokenizer's are written as unused.
        mask_token_id: the drafter's.

    Raises:
        RequestError: DP533, the tokenizer is none that can be written down here.
    """
    entries = _copied(target) if target.kind == "gguf" else _made(target, vocab_size)
    kept = [entry for entry in entries if entry.key != "tokenizer.ggml.mask_token_id"]
    return [*kept, Entry("tokenizer.ggml.mask_token_id", mask_token_id)]


def _copied(target: ExportTarget) -> list[Entry]:
    from gguf import GGUFReader, GGUFValueType

    entries = []
    for key, field in GGUFReader(target.path).fields.items():
        if not key.startswith("tokenizer."):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        entries.append(Entry(key, field.contents(), kind, element))
    return entries


def _made(target: ExportTarget, vocab_size: int) -> list[Entry]:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(target.path)
        described = json.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # tokenizers raise whatever their files make them
        raise _unsupported(target, f"it cannot be read ({type(error).__name__})") from error
    model = described["model"]
    if model["type"] != "BPE" or not _is_byte_level(described):
        raise _unsupported(
            target, f"it is a {model['type']} tokenizer, and only byte-level BPE can be written from a folder"
        )
    tokens, kinds = _tokens(model["vocab"], described["added_tokens"], vocab_size, target)
    bos = tokenizer.bos_token_id
    entries = [
        Entry("tokenizer.ggml.model", "gpt2"),
        Entry("tokenizer.ggml.pre", "default"),
        Entry("tokenizer.ggml.tokens", tokens),
        Entry("tokenizer.ggml.token_type", kinds),
        Entry("tokenizer.ggml.merges", [_merge(merge) for merge in model["merges"]]),
        Entry("tokenizer.ggml.add_bos_token", bos is not None and tokenizer("")["input_ids"][:1] == [bos]),
        Entry("tokenizer.ggml.add_eos_token", False),
    ]
    for key, token_id in (
        ("bos", bos),
        ("eos", tokenizer.eos_token_id),
        ("unknown", tokenizer.unk_token_id),
        ("padding", tokenizer.pad_token_id),
    ):
        if token_id is not None:
            entries.append(Entry(f"tokenizer.ggml.{key}_token_id", token_id))
    return entries


def _is_byte_level(described: Mapping[str, Any]) -> bool:
    """Whether tokens are bytes in the alphabet of GPT-2."""
    decoder = described.get("decoder") or {}
    parts = [decoder, *(decoder.get("decoders") or ())]
    return any(part.get("type") == "ByteLevel" for part in parts)


def _merge(merge: str | list[str]) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)


def _tokens(
    words: Mapping[str, int], added: list[dict[str, Any]], vocab_size: int, target: ExportTarget
) -> tuple[list[str], list[int]]:
    """Text and type of every id below `vocab_size`."""
    found = {index: (word, _NORMAL) for word, index in words.items()}
    found |= {
        entry["id"]: (entry["content"], _CONTROL if entry["special"] else _USER_DEFINED) for entry in added
    }
    if found and max(found) >= vocab_size:
        raise _unsupported(
            target, f"it has token {max(found)}, but the drafter's vocabulary ends at {vocab_size - 1}"
        )
    rows = [found.get(index, (f"[PAD{index}]", _UNUSED)) for index in range(vocab_size)]
    return [text for text, _ in rows], [kind for _, kind in rows]


def _unsupported(target: ExportTarget, why: str) -> RequestError:
    return RequestError(
        "DP533",
        f"the tokenizer of {target.name} cannot be written into a GGUF file: {why}; "
        "give a GGUF file of the target as --target, its vocabulary is then copied",
    )
