"""The n-gram drafter against a rescan of the whole text."""

from __future__ import annotations

import pytest
import torch
from drafter_support import draft_request, extend, tiny_target
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import DrafterError
from draftproof.models.drafters import DraftRequest, DraftSampling, load_drafter
from draftproof.models.drafters.ngram import NgramDrafter

CPU = torch.device("cpu")


def rescan(tokens, count, min_n=2, max_n=4):
    """Longest suffix first, latest earlier occurrence, copied on past the end of the text."""
    for n in range(max_n, min_n - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[len(tokens) - n :]:
                text = list(tokens)
                for _ in range(count):
                    text.append(text[end])
                    end += 1
                return text[len(tokens) :]
    return []


def propose(drafter, state, tokens, count):
    (proposal,) = drafter.propose([DraftRequest(state, tokens, count, 0, DraftSampling())])
    assert proposal.tokens.dtype == torch.int64
    return proposal.tokens.tolist()


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 9), max_size=20),
    count=st.integers(1, 9),
    sizes=st.tuples(st.integers(1, 4), st.integers(0, 3)),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_incremental_index_equals_a_rescan(tokens, cuts, count, sizes):
    min_n, max_n = sizes[0], sizes[0] + sizes[1]
    drafter = NgramDrafter(CPU, block_size=10, min_n=min_n, max_n=max_n)
    state, length = drafter.new_state(), 0
    for cut in [*cuts, len(tokens)]:
        length = min(length + cut, len(tokens))
        text = tokens[:length]
        assert propose(drafter, state, text, count) == rescan(text, count, min_n, max_n)


def test_examples():
    drafter = NgramDrafter(CPU)
    for tokens, want in [
        ([1, 2, 3, 4, 9, 1, 2], [3, 4, 9]),
        ([1, 2, 7, 1, 2, 8, 1, 2], [8, 1, 2]),  # the latest occurrence
        ([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], [7, 6, 1]),  # a longer match beats a later one
        ([4, 4, 4], [4, 4, 4]),  # a match that runs into the end goes on
        ([1, 2, 3], []),
        ([1], []),
    ]:
        assert propose(drafter, drafter.new_state(), tokens, 3) == want


def test_sequences_do_not_share_an_index():
    drafter = NgramDrafter(CPU)
    a, b = drafter.new_state(), drafter.new_state()
    requests = [
        DraftRequest(a, [1, 2, 3, 1, 2], 3, 0, DraftSampling()),
        DraftRequest(b, [9, 8, 1, 2], 3, 0, DraftSampling()),
    ]
    assert [p.tokens.tolist() for p in drafter.propose(requests)] == [[3, 1, 2], []]


def test_at_most_block_size_minus_one():
    drafter = NgramDrafter(CPU, block_size=3)
    assert propose(drafter, drafter.new_state(), [4, 4, 4, 4], 50) == [4, 4]


def test_each_token_is_indexed_once():
    """The work of a step is the tokens it added, not the history."""

    class Counting(list):
        touched = 0

        def __getitem__(self, index):
            part = super().__getitem__(index)
            Counting.touched += len(part) if isinstance(index, slice) else 1
            return part

    drafter = NgramDrafter(CPU)
    state, text = drafter.new_state(), Counting(i % 7 for i in range(2000))
    propose(drafter, state, text, 7)
    Counting.touched = 0
    text.append(5)
    propose(drafter, state, text, 7)
    assert Counting.touched < 100


def test_a_text_that_shrinks_raises():
    drafter = NgramDrafter(CPU)
    state = drafter.new_state()
    propose(drafter, state, [1, 2, 3, 4], 2)
    with pytest.raises(DrafterError) as caught:
        propose(drafter, state, [1, 2], 2)
    assert caught.value.code == "DP316"


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    branches=st.lists(st.lists(st.integers(0, 3), max_size=9), min_size=1, max_size=3),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_fork_or_a_cached_prefix_needs_no_history(tokens, branches):
    """A state made for a text that is long already proposes what one that saw it grow does; and forks do not meet."""
    drafter = NgramDrafter(CPU)
    parent = drafter.new_state()
    propose(drafter, parent, tokens, 5)
    states = [drafter.new_state(length=len(tokens)) for _ in branches]
    for state, branch in zip(states, branches, strict=True):
        assert propose(drafter, state, tokens + branch, 5) == rescan(tokens + branch, 5)
    assert propose(drafter, parent, tokens, 5) == rescan(tokens, 5)


def test_it_keeps_no_pages():
    drafter = NgramDrafter(CPU)
    assert (drafter.page_bytes, drafter.new_pages(7)) == (0, None)
    drafter.copy_page(None, 1, 2)
    state = drafter.new_state(None, [3, 1], 70)
    assert propose(drafter, state, [4, 4, 4], 2) == [4, 4]


def test_it_claims_no_confidence():
    drafter = NgramDrafter(CPU)
    (proposal,) = drafter.propose([draft_request(drafter.new_state(), 6, 0, 3)])
    assert proposal.confidence is None


@pytest.mark.parametrize("sizes", [(0, 3), (3, 2)])
def test_sizes_must_make_sense(sizes):
    with pytest.raises(ValueError, match="min_n"):
        NgramDrafter(CPU, min_n=sizes[0], max_n=sizes[1])


def test_loaded_by_name():
    drafter = load_drafter("ngram", tiny_target().info)
    assert (drafter.name, drafter.tap_layer_ids) == ("ngram", ())
    state = drafter.new_state()
    extend(drafter, state, None, 0)
    assert drafter.propose([draft_request(state, 6, 0, 3)])[0].tokens.tolist() == [0, 0, 0]
