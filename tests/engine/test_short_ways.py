"""Where a step takes a short way, it does what the long way does."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.cache import BlockCache
from draftproof.engine.detokenize import IncrementalDetokenizer, TokenKinds
from draftproof.engine.economics import DraftMode, DraftWish, Economist
from draftproof.engine.memory import FEW_ROWS, _keep_features, _update
from draftproof.engine.metrics import Metrics
from draftproof.engine.sequence import SequenceMemory
from draftproof.engine.undisturbed import undisturbed
from draftproof.models.fused.shelf import SHELF_ROWS, FeatureShelf
from draftproof.models.rows import TargetOutput
from support.engines import made_up_costs
from support.tiny_tokenizers import tiny_tokenizer


class _Holder:
    """A sequence as far as features go."""

    def __init__(self) -> None:
        self.running_memory = SequenceMemory(None, None, None, 0)  # type: ignore[arg-type]


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    passes=st.lists(
        st.lists(st.tuples(st.integers(1, 90), st.floats(0.0, 1.0)), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    ),
    steady=st.integers(0, 40),
    on_shelf=st.booleans(),
)
def test_features_come_out_as_they_came_in(
    passes: list[list[tuple[int, float]]], steady: int, on_shelf: bool
) -> None:
    """Passes of several sequences, each with so many rows, of which a share is kept; then some of one row for each."""
    passes = passes + [[(1, 1.0)] * 3] * steady
    shelf = FeatureShelf()
    holders = [_Holder() for _ in range(5)]
    expected: list[list[int]] = [[] for _ in holders]
    number = 0
    for sizes in passes:
        total = sum(rows for rows, _ in sizes)
        features = torch.arange(number, number + total, dtype=torch.float32)[:, None].expand(-1, 3).clone()
        kept, first = [], 0
        for index, (rows, share) in enumerate(sizes):
            count = int(rows * share)
            kept.append((holders[index], first, count))
            expected[index] += range(number + first, number + first + count)
            first += rows
        output = TargetOutput(torch.empty(0), features)
        if on_shelf:
            home, at = shelf.take(total, 3, torch.float32)
            home[at : at + total] = features
            output = TargetOutput(torch.empty(0), home[at : at + total], home, at)
        _keep_features(kept, output)  # type: ignore[arg-type]
        number += total
    for holder, numbers in zip(holders, expected, strict=True):
        if numbers:
            update = _update(holder.running_memory, tapped=True)
            assert update.features is not None
            assert update.features[:, 0].tolist() == numbers
            # Nobody keeps a large pass alive for the sake of a few of its rows.
            behind = [kept.features.shape[0] for kept in holder.running_memory.waiting]
            assert max(behind) <= max(SHELF_ROWS, 5 * FEW_ROWS, 90)
            # What lies at one pace is one piece, so that nothing is gathered row by row.
            if on_shelf and steady:
                assert len(holder.running_memory.waiting) <= len(passes) - steady + 3


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 340), max_size=8),
    output=st.lists(st.integers(0, 340), max_size=40),
    skip=st.booleans(),
)
def test_text_of_whole_tokens_is_that_of_decoding_windows(
    prompt: list[int], output: list[int], skip: bool
) -> None:
    tokenizer = tiny_tokenizer("byte_level")
    prompt, output = ([token % len(tokenizer) for token in ids] for ids in (prompt, output))
    kinds = TokenKinds.of(tokenizer)
    assert kinds.joins
    short = IncrementalDetokenizer(tokenizer, prompt, skip, kinds=kinds)
    long = IncrementalDetokenizer(tokenizer, prompt, skip, kinds=replace(kinds, joins=False))
    assert [short.push_one(token) for token in output] == [long.push_one(token) for token in output]
    assert short.finish() == long.finish()


@pytest.mark.parametrize("name", ["llama", "gemma", "metaspace", "word_piece", "end_of_word"])
def test_other_vocabularies_are_decoded_in_windows(name: str) -> None:
    assert not TokenKinds.of(tiny_tokenizer(name)).joins


@settings(derandomize=True, max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 20))
def test_positions_found_to_be_ones_own_need_no_block(seed: int) -> None:
    """`_is_own` never says yes where `_plan` would copy or add a block."""
    luck = random.Random(seed)
    cache = BlockCache(12, block_size=4, copy_block=lambda source, destination: None)
    held: list[tuple[object, list[int], int]] = []
    found = 0
    for _ in range(40):
        if luck.random() < 0.35 or not held:
            if len(held) < 3:
                tokens = [luck.randrange(2) for _ in range(luck.randrange(1, 12))]
                opened = cache.open(tokens, limit=len(tokens) - 1, drafter=None)
                held.append((opened.table, tokens, opened.length))
            continue
        table, tokens, length = held.pop(luck.randrange(len(held)))
        for start in range(length, length + 6):
            for end in range(start, start + 6):
                if cache._is_own(table, start, end):  # type: ignore[arg-type]
                    found += 1
                    assert cache._plan(table, start, end) == ([], 0)  # type: ignore[arg-type]
        if cache.blocks_needed(table, len(tokens), length) <= cache.num_free:  # type: ignore[arg-type]
            cache.reserve(table, length, len(tokens))  # type: ignore[arg-type]
            if luck.random() < 0.3 and len(held) < 2:
                held.append((cache.fork(table), list(tokens), length))  # type: ignore[arg-type]
            cache.commit(table, tokens, len(tokens), drafter=None, drafter_length=0)  # type: ignore[arg-type]
            held.append((table, [*tokens, luck.randrange(2)], len(tokens)))
        else:
            cache.close(table, tokens, length, drafter=None, drafter_length=0)  # type: ignore[arg-type]
    assert found


@pytest.mark.parametrize("mode", ["auto", "off", "fixed=0", "fixed=3"])
def test_who_rests_would_have_planned_nothing(mode: str) -> None:
    luck = random.Random(1)
    asking, twin = (Economist(DraftMode.parse(mode), made_up_costs(), 7) for _ in range(2))
    mine, its = ([economist.new_request() for _ in range(3)] for economist in (asking, twin))
    rested = 0
    for step in range(400):
        some = 3 if step % 50 else 2
        others = 16 if step % 31 == 0 else 0
        refilled = step // 100 % 2 == 0
        planned = twin.plan([DraftWish(one, 7, 50) for one in its[:some]], others, refilled)
        if asking.rests(mine[:some], others, refilled):
            rested += 1
            assert planned == [0] * some
        else:
            assert asking.plan([DraftWish(one, 7, 50) for one in mine[:some]], others, refilled) == planned
        if any(planned) and luck.random() < 0.5:  # the drafter had nothing to say in the other half
            for economist, requests in ((asking, mine), (twin, its)):
                _fail(economist, requests, planned)
    assert (rested == 400) == (mode in ("off", "fixed=0"))
    assert (rested > 0) == (mode != "fixed=3")


def _fail(economist: Economist, requests: list[object], planned: list[int]) -> None:
    from draftproof.engine.economics import DraftOutcome

    economist.observe(
        [DraftOutcome(one, None, count, 0) for one, count in zip(requests, planned, strict=False) if count]  # type: ignore[arg-type]
    )


def test_a_copy_of_the_counters_is_whole_and_stays_as_it_is() -> None:
    counters = Metrics(steps=3, output_tokens=9)
    counters.count_draft(0, 0)
    counters.count_draft(2, 1)
    counters.count_draft(0, 0)
    counters.count_finished("stop")
    assert counters.draft_lengths == [2, 0, 1]
    assert counters.decode_steps == 3
    assert counters.drafted_steps == 1
    copy = counters.copied()
    assert {f.name: getattr(copy, f.name) for f in fields(Metrics)} == {
        f.name: getattr(counters, f.name) for f in fields(Metrics)
    }
    kept = replace(copy, finished=dict(copy.finished), draft_lengths=list(copy.draft_lengths))
    counters.count_draft(2, 2)
    counters.count_finished("stop")
    assert copy == kept != counters


@pytest.mark.parametrize("autocast", [False, True])
def test_models_run_without_gradients_and_autocast(autocast: bool) -> None:
    cpu = torch.device("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        with undisturbed(cpu):
            assert torch.is_inference_mode_enabled()
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu") is autocast
    assert not torch.is_inference_mode_enabled()
