"""The incremental detokeniser against whole-sequence decoding, on real tokenizers of every family."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from draftproof.engine.detokenize import IncrementalDetokenizer, TokenKinds
from draftproof.models.registry.cache import cache_root
from support.tiny_tokenizers import NAMES, PIECES, TEXT, tiny_tokenizer

FFFD = "\ufffd"
KINDS = {name: TokenKinds.of(tiny_tokenizer(name)) for name in NAMES}
FALLBACK = ("llama", "gemma")


def decode(name: str, ids: Sequence[int], skip: bool) -> str:
    """The whole sequence at once; for byte-fallback tokenizers by a plain reading of the rules."""
    tokenizer = tiny_tokenizer(name)
    text = tokenizer.decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    if name in FALLBACK:
        by_hand = decode_byte_fallback(name, ids, skip)
        # They may differ where a run of bytes is malformed, and there only.
        assert by_hand == text or FFFD in by_hand
        return by_hand
    return text


def decode_byte_fallback(name: str, ids: Sequence[int], skip: bool) -> str:
    tokenizer, kinds = tiny_tokenizer(name), KINDS[name]
    known = [i for i in ids if i < len(tokenizer) and not (skip and i in kinds.special)]
    pieces: list[str] = []
    run = b""
    for i in [*known, None]:
        if i in kinds.byte_values:
            run += bytes([kinds.byte_values[i]])
            continue
        pieces.append(complete_characters(run))
        pieces.append(FFFD * (len(run) - len(complete_characters(run).encode())))
        run = b""
        if i is not None:
            pieces.append(tokenizer.convert_ids_to_tokens(i).replace("▁", " "))
    text = "".join(pieces)
    return text.removeprefix(" ") if name == "llama" else text


def complete_characters(run: bytes) -> str:
    for end in range(len(run), -1, -1):
        try:
            return run[:end].decode()
        except UnicodeDecodeError:
            pass
    raise AssertionError("unreachable: no bytes are valid")


def new_text(name: str, prompt: Sequence[int], output: Sequence[int], skip: bool) -> str:
    old, full = decode(name, prompt, skip), decode(name, [*prompt, *output], skip)
    return full[next((i for i, (a, b) in enumerate(zip(old, full, strict=False)) if a != b), len(old)) :]


def token_ids(name: str) -> st.SearchStrategy[list[int]]:
    """Random ids (special, unknown and byte tokens among them), encoded text, and cuts through characters."""
    tokenizer = tiny_tokenizer(name)
    any_id = st.integers(0, len(tokenizer) + 3)
    noise = st.lists(any_id, max_size=20)
    fallback = sorted(KINDS[name].byte_values)
    if fallback:
        noise |= st.lists(st.sampled_from(fallback) | any_id, max_size=20)
    text = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=6).map(
        lambda parts: tokenizer.encode(" ".join(parts), add_special_tokens=False)
    )
    cut = st.tuples(text, st.integers(0, 3), st.integers(0, 3)).map(lambda t: t[0][t[1] : len(t[0]) - t[2]])
    return st.lists(text | cut | noise, max_size=3).map(lambda parts: [i for part in parts for i in part])


@st.composite
def outputs(draw: Callable[[Any], Any]) -> tuple[str, list[int], list[int], list[int], bool]:
    name = draw(st.sampled_from(NAMES))
    prompt, output = draw(token_ids(name)), draw(token_ids(name))
    cuts = sorted(draw(st.lists(st.integers(0, len(output)), max_size=6)))
    return name, prompt, output, cuts, draw(st.booleans())


def split(items: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *cuts, len(items)]
    return [items[a:b] for a, b in pairwise(edges)]


@settings(max_examples=400, deadline=None)
@given(outputs())
def test_pushed_text_is_the_decoded_text_however_it_is_split(
    case: tuple[str, list[int], list[int], list[int], bool],
) -> None:
    name, prompt, output, cuts, skip = case
    detokenizer = IncrementalDetokenizer(tiny_tokenizer(name), prompt, skip, kinds=KINDS[name])
    text = "".join(detokenizer.push(part) for part in split(output, cuts)) + detokenizer.finish()
    assert text == new_text(name, prompt, output, skip)
    assert detokenizer.finish() == ""


@settings(max_examples=250, deadline=None)
@given(outputs())
def test_nothing_but_an_unfinished_character_is_held_back(
    case: tuple[str, list[int], list[int], list[int], bool],
) -> None:
    name, prompt, output, _, skip = case
    detokenizer = IncrementalDetokenizer(tiny_tokenizer(name), prompt, skip, kinds=KINDS[name])
    shown = ""
    for count, token_id in enumerate(output, start=1):
        shown += detokenizer.push_one(token_id)
        so_far = new_text(name, prompt, output[:count], skip)
        assert so_far.startswith(shown)
        held = so_far[len(shown) :]
        assert held == FFFD * len(held)
        assert len(held) <= (3 if name in FALLBACK else 1)


@pytest.mark.parametrize("name", NAMES)
def test_long_ordinary_text_equals_the_tokenizers_own_decode(name: str) -> None:
    tokenizer = tiny_tokenizer(name)
    ids = tokenizer.encode(TEXT * 3, add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer, [1], kinds=KINDS[name])
    text = "".join(map(detokenizer.push_one, ids)) + detokenizer.finish()
    assert text == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if name in ("byte_level", "llama"):
        assert text == TEXT * 3


@pytest.mark.parametrize("name", ["byte_level", *FALLBACK])
def test_a_character_appears_whole_with_the_token_that_completes_it(name: str) -> None:
    tokenizer = tiny_tokenizer(name)
    ids = tokenizer.encode("x漢", add_special_tokens=False)  # not in the training text: three byte tokens
    assert len(ids) >= 4
    detokenizer = IncrementalDetokenizer(tokenizer, ids[:-3], kinds=KINDS[name])
    assert [detokenizer.push_one(i) for i in ids[-3:]] == ["", "", "漢"]


@pytest.mark.parametrize("name", ["byte_level", *FALLBACK])
def test_a_character_begun_by_the_prompt_belongs_to_the_output_iff_completed(name: str) -> None:
    tokenizer = tiny_tokenizer(name)
    ids = tokenizer.encode("x漢", add_special_tokens=False)
    completed = IncrementalDetokenizer(tokenizer, ids[:-1], kinds=KINDS[name])
    assert completed.push_one(ids[-1]) == "漢"
    spoiled = IncrementalDetokenizer(tokenizer, ids[:-1], kinds=KINDS[name])
    letter = tokenizer.convert_tokens_to_ids("o")
    assert spoiled.push_one(letter) == "o"
    unused = IncrementalDetokenizer(tokenizer, ids[:-1], kinds=KINDS[name])
    assert unused.finish() == ""


@pytest.mark.parametrize("name", ["byte_level", *FALLBACK])
def test_an_unfinished_character_at_the_end_becomes_what_decode_makes_of_it(name: str) -> None:
    tokenizer = tiny_tokenizer(name)
    ids = tokenizer.encode("x漢", add_special_tokens=False)[:-1]
    detokenizer = IncrementalDetokenizer(tokenizer, kinds=KINDS[name])
    shown = detokenizer.push(ids)
    assert FFFD not in shown
    assert shown + detokenizer.finish() == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("name", FALLBACK)
def test_a_byte_fallback_newline_is_not_kept_waiting(name: str) -> None:
    tokenizer = tiny_tokenizer(name)
    newline, broken = tokenizer.convert_tokens_to_ids(["<0x0A>", "<0xFF>"])
    detokenizer = IncrementalDetokenizer(tokenizer, [1, 30], kinds=KINDS[name])
    assert detokenizer.push_one(newline) == "\n"
    assert detokenizer.push_one(broken) == FFFD  # decode would turn the newline into U+FFFD as well
    assert detokenizer.push_one(newline) == FFFD  # as decode has it: the run stays malformed to its end


def test_a_space_given_as_a_byte_token_is_dropped_too_where_a_sequence_begins() -> None:
    tokenizer, kinds = tiny_tokenizer("llama"), KINDS["llama"]
    space, word = tokenizer.convert_tokens_to_ids(["<0x20>", "▁f"])
    for output in ([space], [space, space], [space, word]):
        text = tokenizer.decode([1, *output], skip_special_tokens=True)
        assert IncrementalDetokenizer(tokenizer, [1], kinds=kinds).push(output) == text
    assert IncrementalDetokenizer(tokenizer, [1, word], kinds=kinds).push([space]) == " "


@pytest.mark.parametrize("name", ["llama", "metaspace"])
def test_the_leading_space_is_dropped_only_where_a_sequence_begins(name: str) -> None:
    tokenizer = tiny_tokenizer(name)
    word = tokenizer.convert_tokens_to_ids("▁f")
    assert IncrementalDetokenizer(tokenizer, [1], kinds=KINDS[name]).push_one(word) == "f"
    assert IncrementalDetokenizer(tokenizer, [1, word], kinds=KINDS[name]).push_one(word) == " f"
    padding = len(tokenizer) + 7  # ids the model has and the tokenizer doesn't
    in_padding = IncrementalDetokenizer(tokenizer, [word] + [padding] * 9, kinds=KINDS[name])
    assert in_padding.push([padding] * 20 + [word]) == " f"
    in_special = IncrementalDetokenizer(tokenizer, [word] + [1] * 9, kinds=KINDS[name])
    assert in_special.push([2] * 20 + [word]) == " f"


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_are_skipped_or_shown_and_added_ones_always_shown(name: str) -> None:
    tokenizer = tiny_tokenizer(name)
    end, tool = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<tool>"])
    assert IncrementalDetokenizer(tokenizer, [1], True, kinds=KINDS[name]).push([end]) == ""
    assert "<|im_end|>" in IncrementalDetokenizer(tokenizer, [1], False, kinds=KINDS[name]).push([end])
    assert "<tool>" in IncrementalDetokenizer(tokenizer, [1], True, kinds=KINDS[name]).push([tool])


class Counting:
    """A tokenizer that keeps count of how many tokens it was asked to decode."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.inner = tokenizer
        self.decoded = 0
        self.longest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def decode(self, ids: list[int], **options: bool) -> str:
        self.decoded += len(ids)
        self.longest = max(self.longest, len(ids))
        return self.inner.decode(ids, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stream", ["text", "noise", "bytes"])
def test_the_cost_of_a_token_does_not_grow(name: str, stream: str) -> None:
    tokenizer = Counting(tiny_tokenizer(name))
    draw = random.Random(0)
    ids = {
        "text": tokenizer.encode(TEXT, add_special_tokens=False) * 9,
        "noise": [draw.randrange(len(tokenizer.inner)) for _ in range(2000)],
        # Continuation bytes only: all of it is malformed, and the end is always uncertain.
        "bytes": [tokenizer.convert_tokens_to_ids("<0x80>" if name in FALLBACK else "Ģ") or 5] * 2000,
    }[stream]
    detokenizer = IncrementalDetokenizer(tokenizer, ids[:500], kinds=KINDS[name])
    text = detokenizer.push(ids) + detokenizer.finish()
    assert tokenizer.decoded <= 14 * len(ids)
    assert tokenizer.longest <= 12
    assert text == new_text(name, ids[:500], ids, True)


def test_kinds_are_read_off_the_tokenizer() -> None:
    for name in NAMES:
        kinds = KINDS[name]
        assert sorted(kinds.special) == [0, 1, 2, 3, 4]
        assert sorted(kinds.byte_values.values()) == (list(range(256)) if name in FALLBACK else [])
    plain = IncrementalDetokenizer(tiny_tokenizer("llama"), [1])
    assert plain.push(tiny_tokenizer("llama").encode("fox\n", add_special_tokens=False)) == "fox\n"


def cached_smollm2() -> Path | None:
    return next(iter(sorted(cache_root().glob("models/*smollm2*/tokenizer.json"))), None)


@pytest.mark.smollm2
@pytest.mark.skipif(cached_smollm2() is None, reason="the default model is not in the user's cache folder")
def test_smollm2_text_and_noise() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(cached_smollm2()))
    assert len(tokenizer) == 49152
    kinds = TokenKinds.of(tokenizer)
    draw = random.Random(1)
    for round_ in range(60):
        ids = [draw.randrange(len(tokenizer)) for _ in range(40)]
        if round_ % 2:
            ids = tokenizer.encode(TEXT[draw.randrange(200) :])
        detokenizer = IncrementalDetokenizer(tokenizer, [1], kinds=kinds)
        text = "".join(map(detokenizer.push_one, ids)) + detokenizer.finish()
        assert text == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
