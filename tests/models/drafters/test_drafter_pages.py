"""Pages that sequences share: cached prefixes, forks, scattered tables, leftovers of others, many sequences in a pass."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from drafter_plain import PlainDrafter
from drafter_support import draft_request, extend, random_features, tiny_checkpoint, tiny_target
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import DrafterError
from draftproof.models.drafters import ContextUpdate, DraftSampling, load_drafter
from draftproof.models.kv import KEY_BLOCK

KINDS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "sliding": {
        "top": {"layer_types": ["sliding_attention", "full_attention"]},
        "dflash_config": {"swa_window_size": 70, "attention_sink_bias": True},
    },
    "narrow": {"dflash_config": {"use_swa": True, "swa_window_size": 5}},
    "causal": {"top": {"is_causal": True}},
    "dflash2": {"dflash2": True},
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def make(folder, dtype=torch.float32, **options):
    return load_drafter(
        tiny_checkpoint(folder / "drafter", block_size=6, **options), tiny_target(dtype=dtype).info
    )


def spoiled_pages(drafter, num_pages):
    """Pages full of what others left behind."""
    pages = drafter.new_pages(num_pages)
    pages.data.fill_(float("nan"))
    pages.data[:, ::2] = 1e6
    return pages


def hidden(drafter, state, anchor, count):
    return drafter.block_hidden([state], [[anchor] + [drafter.config.mask_token_id] * count])


def same(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@dataclass
class Case:
    """One sequence: its state in shared pages, and its twin with private memory that knows nothing of the others."""

    state: Any
    alone: Any
    anchor: int
    count: int


def many(drafter, lengths, seed=0):
    """Sequences of these lengths in scattered pages, each page one's own, the rest spoiled."""
    needs = [-(-(length + 1) // KEY_BLOCK) for length in lengths]
    pages = spoiled_pages(drafter, sum(needs) + 3)
    order = list(range(sum(needs) + 3))
    shuffler = random.Random(seed)
    shuffler.shuffle(order)
    cases = []
    for index, (length, need) in enumerate(zip(lengths, needs, strict=True)):
        table, order = order[:need], order[need:]
        case = Case(
            drafter.new_state(pages, table), drafter.new_state(), index % 50, 1 + shuffler.randrange(5)
        )
        extend(drafter, case.alone, random_features(length, index), 0)
        cases.append(case)
    updates = [
        ContextUpdate(c.state, random_features(n, i), 0)
        for i, (c, n) in enumerate(zip(cases, lengths, strict=True))
    ]
    drafter.extend(updates)
    return cases


LENGTHS = [0, 1, 63, 64, 65, 127, 128, 129, 200, 300, 5, 700, 9, 61, 62, 58]
THIRTY_TWO = [*LENGTHS, *[3 + 23 * i for i in range(16)]]


# Many sequences


@pytest.mark.parametrize(
    "sampling", [DraftSampling(), DraftSampling(temperature=0.9, top_p=0.9, seed=5), None]
)
def test_thirty_two_sequences_propose_as_alone(tmp_path, kind, sampling):
    """None: every other one greedy, the others each with settings of their own."""
    drafter = make(tmp_path, **kind)
    cases = many(drafter, THIRTY_TWO)
    shared, alone = [], []
    for index, (case, length) in enumerate(zip(cases, THIRTY_TWO, strict=True)):
        mine = sampling or DraftSampling(
            index % 2 * (0.5 + index / 32), index % 7, 1 - index / 64, 0.0, 2**63 + index
        )
        for requests, state in ((shared, case.state), (alone, case.alone)):
            requests.append(draft_request(state, length, case.anchor, case.count, mine, 3 * index))
    singles = [drafter.propose([request])[0] for request in alone]
    for order in (range(32), reversed(range(32)), range(7, 12)):
        order = list(order)
        together = drafter.propose([shared[index] for index in order])
        for index, proposal in zip(order, together, strict=True):
            assert proposal.tokens.tolist() == singles[index].tokens.tolist()
            assert len(proposal.tokens) == cases[index].count
            same(proposal.confidence, singles[index].confidence)
    assert len({tuple(single.confidence.tolist()) for single in singles}) == len(singles)


def test_thirty_two_sequences_have_the_hidden_states_they_have_alone(tmp_path, kind):
    drafter = make(tmp_path, **kind)
    cases = many(drafter, THIRTY_TWO)
    mask = drafter.config.mask_token_id
    ids = [[case.anchor] + [mask] * case.count for case in cases]
    together = drafter.block_hidden([case.state for case in cases], ids)
    assert together.isfinite().all()
    for case, mine in zip(cases, together.split([len(part) for part in ids]), strict=True):
        same(mine, hidden(drafter, case.alone, case.anchor, case.count))


@pytest.mark.parametrize("sampling", [DraftSampling(), DraftSampling(temperature=0.9, seed=5)])
def test_who_asks_for_nothing_gets_nothing(tmp_path, kind, sampling):
    drafter = make(tmp_path, **kind)
    cases = many(drafter, [9, 70, 0, 5])
    for counts in ((0, 3, 0, 2), (2, 0, 4, 0), (0, 0, 0, 0)):
        requests = [
            draft_request(c.state, c.state.length, c.anchor, n, sampling)
            for c, n in zip(cases, counts, strict=True)
        ]
        proposals = drafter.propose(requests)
        assert [len(proposal.tokens) for proposal in proposals] == list(counts)
        for request, proposal in zip(requests, proposals, strict=True):
            if request.num_draft_tokens:
                assert proposal.tokens.tolist() == drafter.propose([request])[0].tokens.tolist()


def test_private_and_shared_memory_in_one_pass(tmp_path, kind):
    drafter = make(tmp_path, **kind)
    cases = many(drafter, [5, 70, 150])
    requests = [draft_request(s, s.length, c.anchor, 4) for c in cases for s in (c.state, c.alone)]
    proposals = [proposal.tokens.tolist() for proposal in drafter.propose(requests)]
    assert proposals[::2] == proposals[1::2]
    both = [state for case in cases for state in (case.state, case.alone)]
    drafter.extend([ContextUpdate(state, random_features(1, 9), state.length) for state in both])
    for case in cases:
        same(hidden(drafter, case.state, 3, 2), hidden(drafter, case.alone, 3, 2))


@given(
    lengths=st.lists(st.integers(0, 140), min_size=1, max_size=6),
    counts=st.lists(st.integers(1, 5), min_size=6, max_size=6),
    name=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_mix_equals_the_plain_reading(tmp_path_factory, lengths, counts, name, seed):
    """Held against a recomputation without caches, pages or batches (design section 4)."""
    folder = tmp_path_factory.mktemp("mix")
    drafter, target = make(folder, **KINDS[name]), tiny_target()
    plain = PlainDrafter(folder / "drafter", target.info.embedding, target.head)
    cases = many(drafter, lengths, seed)
    ids = [[c.anchor] + [drafter.config.mask_token_id] * n for c, n in zip(cases, counts, strict=False)]
    together = drafter.block_hidden([case.state for case in cases], ids).split([len(part) for part in ids])
    for index in {0, len(cases) - 1}:  # the plain reading is slow
        want = plain.run(random_features(lengths[index], index), cases[index].anchor, counts[index])
        torch.testing.assert_close(together[index].double(), want.hidden, atol=1e-4, rtol=1e-5)


# What is written, and what is not


def test_proposing_writes_nothing(tmp_path, kind):
    """Neither into shared pages nor into a sequence's own: a block's keys and values live outside of them."""
    drafter = make(tmp_path, **kind)
    cases = many(drafter, [0, 60, 63, 64, 130])
    pages = cases[0].state.pages
    before = pages.data.clone()
    drafter.propose([draft_request(c.state, c.state.length, c.anchor, 5) for c in cases])
    assert torch.equal(pages.data.view(torch.int32), before.view(torch.int32))


def test_extending_writes_the_new_positions_and_nothing_else(tmp_path):
    drafter = make(tmp_path)
    pages = spoiled_pages(drafter, 6)
    a, b = drafter.new_state(pages, [4, 1]), drafter.new_state(pages, [2])
    extend(drafter, a, random_features(60, 1), 0)
    before = pages.data.clone()
    drafter.extend([ContextUpdate(a, random_features(9, 2), 60), ContextUpdate(b, random_features(3, 3), 0)])
    changed = (pages.data.view(torch.int32) != before.view(torch.int32)).any(-1).any(-1).any(-1).any(0)
    written = {(int(page), int(offset)) for page, offset in changed.nonzero()}
    assert written == {(4, o) for o in range(60, 64)} | {(1, o) for o in range(5)} | {
        (2, o) for o in range(3)
    }


def test_a_draft_needs_no_room_in_the_table(tmp_path, kind):
    """The block's slots may reach into a page that the sequence has not got yet."""
    drafter = make(tmp_path, **kind)
    pages = spoiled_pages(drafter, 3)
    state, alone = drafter.new_state(pages, [2]), drafter.new_state()
    for s in (state, alone):
        extend(drafter, s, random_features(63), 0)
    same(hidden(drafter, state, 3, 5), hidden(drafter, alone, 3, 5))
    empty = drafter.new_state(pages, [])
    same(hidden(drafter, empty, 3, 5), hidden(drafter, drafter.new_state(), 3, 5))


# Prefixes, forks, rollback


@pytest.mark.parametrize("length", [1, 64, 100, 190])
def test_a_cached_prefix_equals_a_recomputed_one(tmp_path, kind, length):
    drafter = make(tmp_path, **kind)
    pages, features = spoiled_pages(drafter, 8), random_features(200)
    first = drafter.new_state(pages, [5, 0, 3, 7])
    extend(drafter, first, features[:190], 0)
    shared = length // KEY_BLOCK
    table = [*first.table[:shared], *[6, 2, 1, 4][: 4 - shared]]
    if length % KEY_BLOCK:
        drafter.copy_page(pages, first.table[shared], table[shared])
    hit, miss = drafter.new_state(pages, table, length), drafter.new_state()
    extend(drafter, miss, features[:length], 0)
    same(hidden(drafter, hit, 3, 5), hidden(drafter, miss, 3, 5))
    for state in (hit, miss):
        extend(drafter, state, features[length:], length)
    same(hidden(drafter, hit, 3, 5), hidden(drafter, miss, 3, 5))
    assert hit.length == 200
    kept = drafter.new_state()
    extend(drafter, kept, features[:190], 0)
    same(hidden(drafter, first, 3, 5), hidden(drafter, kept, 3, 5))


def test_forks_go_their_own_ways(tmp_path, kind):
    drafter = make(tmp_path, **kind)
    pages, features = spoiled_pages(drafter, 8), random_features(80)
    parent = drafter.new_state(pages, [5, 0])
    extend(drafter, parent, features, 0)
    children = []
    for index in range(2):
        drafter.copy_page(pages, 0, 2 + index)
        children.append(drafter.new_state(pages, [5, 2 + index], 80))
    ends = [random_features(7, 10 + index) for index in range(2)]
    drafter.extend([ContextUpdate(child, end, 80) for child, end in zip(children, ends, strict=True)])
    for child, end in zip(children, ends, strict=True):
        alone = drafter.new_state()
        extend(drafter, alone, torch.cat((features, end)), 0)
        same(hidden(drafter, child, 3, 5), hidden(drafter, alone, 3, 5))


def test_the_table_may_be_changed_in_place(tmp_path):
    """Its owner appends pages, and swaps one when a shared page is about to be written."""
    drafter = make(tmp_path)
    pages, features = spoiled_pages(drafter, 8), random_features(140)
    table = [5]
    state, alone = drafter.new_state(pages, table), drafter.new_state()
    extend(drafter, state, features[:50], 0)
    drafter.copy_page(pages, 5, 1)
    table[0] = 1
    pages.data[:, 5] = float("nan")
    table.extend([7, 3])
    extend(drafter, state, features[50:], 50)
    extend(drafter, alone, features, 0)
    same(hidden(drafter, state, 3, 5), hidden(drafter, alone, 3, 5))


def test_copying_a_page_copies_all_layers_and_no_other_page(tmp_path):
    drafter = make(tmp_path)
    pages = drafter.new_pages(5)
    pages.data.copy_(torch.randn(pages.data.shape, generator=torch.Generator().manual_seed(0)))
    before = pages.data.clone()
    drafter.copy_page(pages, 1, 3)
    assert torch.equal(pages.data[:, 3], before[:, 1])
    others = [0, 1, 2, 4]
    assert torch.equal(pages.data[:, others], before[:, others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_are_as_large_as_said_and_start_as_zeros(tmp_path, dtype):
    drafter = make(tmp_path, dtype)
    pages = drafter.new_pages(3)
    assert pages.data.dtype == dtype
    assert pages.data.nbytes == 3 * drafter.page_bytes
    assert not pages.data.any()


def test_untouched_pages_cost_no_memory(tmp_path):
    """Four gigabytes, used in one place."""
    resource = pytest.importorskip("resource")
    drafter = make(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pages = drafter.new_pages(2**32 // drafter.page_bytes)
    state, alone = drafter.new_state(pages, [pages.num_pages - 1]), drafter.new_state()
    for s in (state, alone):
        extend(drafter, s, random_features(20), 0)
    same(hidden(drafter, state, 3, 5), hidden(drafter, alone, 3, 5))
    unit = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < 2**28


# Failures


def lengths_of(cases):
    return [case.state.length for case in cases]


@pytest.mark.parametrize("fault", ["start", "width", "none", "table"])
def test_an_update_that_fails_changes_no_state(tmp_path, fault):
    drafter = make(tmp_path)
    cases = many(drafter, [10, 62, 64])
    before = cases[0].state.pages.data.clone()
    updates = [ContextUpdate(c.state, random_features(2, i), c.state.length) for i, c in enumerate(cases)]
    bad = {
        "start": ContextUpdate(cases[1].state, random_features(2), 61),
        "width": ContextUpdate(cases[1].state, random_features(2, width=95), 62),
        "none": ContextUpdate(cases[1].state, None, 62),
        "table": ContextUpdate(cases[1].state, random_features(3), 62),
    }[fault]
    with pytest.raises(RuntimeError if fault == "table" else DrafterError):
        drafter.extend([updates[0], bad, updates[2]])
    assert lengths_of(cases) == [10, 62, 64]
    assert torch.equal(cases[0].state.pages.data.view(torch.int32), before.view(torch.int32))
    drafter.extend(updates)
    assert lengths_of(cases) == [12, 64, 66]


def test_a_proposal_that_fails_changes_no_state(tmp_path):
    drafter = make(tmp_path)
    cases = many(drafter, [10, 62])
    with pytest.raises(DrafterError):
        drafter.propose([draft_request(cases[0].state, 10, 1, 3), draft_request(cases[1].state, 61, 1, 3)])
    assert lengths_of(cases) == [10, 62]


def test_two_updates_of_one_sequence_in_a_call(tmp_path):
    drafter = make(tmp_path)
    features = random_features(80)
    state, alone = drafter.new_state(), drafter.new_state()
    drafter.extend([ContextUpdate(state, features[:50], 0), ContextUpdate(state, features[50:], 50)])
    extend(drafter, alone, features, 0)
    same(hidden(drafter, state, 3, 5), hidden(drafter, alone, 3, 5))


@pytest.mark.parametrize("sampling", [DraftSampling(), DraftSampling(temperature=0.7, seed=1)])
def test_broken_features_cost_their_own_sequence_alone(tmp_path, kind, sampling):
    """A target that gave NaN for one sequence: that one gets no drafts, the others theirs."""
    drafter = make(tmp_path, **kind)
    cases = many(drafter, [40, 70, 20])
    for state in (cases[1].state, cases[1].alone):
        extend(drafter, state, torch.full((1, 96), float("nan")), 70)
    requests = [draft_request(c.state, c.state.length, c.anchor, 4, sampling) for c in cases]
    proposals = drafter.propose(requests)
    assert [len(p.tokens) for p in proposals] == [4, 0, 4]
    assert [len(p.confidence) for p in proposals] == [4, 0, 4]
    for case, proposal in zip(cases[::2], proposals[::2], strict=True):
        alone = drafter.propose([draft_request(case.alone, case.alone.length, case.anchor, 4, sampling)])[0]
        assert proposal.tokens.tolist() == alone.tokens.tolist()


def test_memory_must_be_given_whole(tmp_path):
    drafter = make(tmp_path)
    with pytest.raises(ValueError, match="length"):
        drafter.new_state(length=3)
    with pytest.raises(ValueError, match="table"):
        drafter.new_state(drafter.new_pages(2))


# Confidence


@pytest.mark.parametrize("sampling", [DraftSampling(), DraftSampling(temperature=1.5, top_k=5, seed=1)])
def test_confidence_is_the_drafters_own_probability(tmp_path, kind, sampling):
    drafter = make(tmp_path, **kind)
    state = drafter.new_state()
    extend(drafter, state, random_features(9), 0)
    (proposal,) = drafter.propose([draft_request(state, 9, 3, 5, sampling)])
    logits = drafter.logits(hidden(drafter, state, 3, 5)[1:])
    want = logits.double().softmax(-1)[range(5), proposal.tokens]
    assert proposal.confidence.dtype == torch.float32
    torch.testing.assert_close(proposal.confidence.double(), want, atol=1e-6, rtol=1e-5)
