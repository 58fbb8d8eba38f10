"""The compiled passes of plain DFlash against the same drafter in torch, and what only they have: packed heads, precisions."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from drafter_support import (
    GOLDEN,
    draft_request,
    extend,
    random_features,
    target_info,
    tiny_checkpoint,
    tiny_target,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from draftproof.models.drafters import ContextUpdate, DraftSampling, load_drafter
from draftproof.models.drafters.dflash import DFlashDrafter
from draftproof.models.drafters.vocabulary import FILE, vocabulary_text
from draftproof.models.kernels.packing import Precision, available, pack
from draftproof.models.kv import KEY_BLOCK

if not available(Precision.FLOAT32, torch.device("cpu")):
    pytest.skip("nothing to compile with", allow_module_level=True)

from draftproof.models.drafters.fused import FusedDFlashDrafter
from draftproof.models.drafters.fused_weights import Precisions, narrowed, repacked

KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"top": {"is_causal": True}},
    "sliding": {
        "top": {"layer_types": ["sliding_attention", "full_attention"]},
        "dflash_config": {"swa_window_size": 70, "attention_sink_bias": True},
    },
    "narrow": {"dflash_config": {"use_swa": True, "swa_window_size": 3}},
    "scaled": {
        "top": {"hidden_act": "gelu_pytorch_tanh", "attention_bias": True},
        "dflash_config": {
            "attention_value_scale": 0.5,
            "input_embedding_scale": 2.0,
            "output_multiplier": 0.7,
            "final_logit_softcapping": 2.5,
        },
    },
}
SHAPES: dict[str, dict[str, int]] = {
    "even": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "intermediate_size": 64},
    "odd": {"num_heads": 3, "num_kv_heads": 1, "head_dim": 22, "intermediate_size": 41},
    "wide": {"num_heads": 2, "num_kv_heads": 2, "head_dim": 64, "intermediate_size": 33},
    "widest": {"num_heads": 1, "num_kv_heads": 1, "head_dim": 128, "intermediate_size": 96},
}
ALL_FLOAT = Precisions(Precision.FLOAT32, Precision.FLOAT32)
COARSE = Precisions(Precision.INT8, Precision.INT4)
# Each pair is compiled by itself, so not all of them.
PRECISIONS = [
    pytest.param(pair, id=f"{pair.layers.value}-{pair.head.value}")
    for pair in (ALL_FLOAT, COARSE, Precisions(Precision.BFLOAT16, Precision.BFLOAT16))
]


def both(
    folder, packed=True, hidden=32, vocab=61, dtype=torch.float32, precisions=None, known=None, **options
):
    """The same checkpoint compiled, and in torch."""
    path = tiny_checkpoint(folder / "drafter", block_size=8, hidden_size=hidden, vocab_size=vocab, **options)
    if known is not None:
        (path / FILE).write_text(vocabulary_text(known))
    target = tiny_target(hidden=hidden, vocab=vocab, dtype=dtype)
    head = (precisions or ALL_FLOAT).head
    info = replace(target.info, packed_head=pack(target.head, head)) if packed else target.info
    fused = load_drafter(path, info, precisions=precisions)
    plain = load_drafter(path, target.info, executor="torch")
    assert isinstance(fused, FusedDFlashDrafter)
    assert isinstance(plain, DFlashDrafter)
    return fused, plain


def scattered(drafter, lengths, seed, width):
    """Sequences of these lengths in scattered pages of a pool that is full of NaN wherever nothing has been written."""
    needs = [-(-length // KEY_BLOCK) for length in lengths]
    pages = drafter.new_pages(sum(needs) + 2)
    pages.data.fill_(float("nan"))
    order = list(range(sum(needs) + 2))
    random.Random(seed).shuffle(order)
    states = []
    for need in needs:
        states.append(drafter.new_state(pages, order[:need]))
        order = order[need:]
    drafter.extend(
        [ContextUpdate(s, random_features(n, i, width), 0) for i, (s, n) in enumerate(zip(states, lengths))]  # noqa: B905
    )
    return states


def requests_for(states, counts, sampling=None):
    samplings = sampling or [DraftSampling()] * len(states)
    return [
        draft_request(state, state.length, 7 + index, count, mine, 2 * index)
        for index, (state, count, mine) in enumerate(zip(states, counts, samplings))  # noqa: B905
    ]


def agree(mine, theirs):
    for a, b in zip(mine, theirs, strict=True):
        assert a.tokens.dtype == torch.int64
        assert a.confidence.dtype == torch.float32
        assert a.tokens.tolist() == b.tokens.tolist()
        torch.testing.assert_close(a.confidence, b.confidence, atol=1e-6, rtol=2e-5)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    shape=st.sampled_from(sorted(SHAPES)),
    hidden=st.sampled_from([20, 32, 75]),
    vocab=st.sampled_from([31, 61, 700]),
    packed=st.booleans(),
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=6),
    counts=st.lists(st.integers(0, 7), min_size=6, max_size=6),
    sampled=st.lists(st.booleans(), min_size=6, max_size=6),
    share=st.sampled_from([None, None, 0.05, 0.5, 1.0]),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_mix_equals_torch(
    tmp_path_factory, kind, shape, hidden, vocab, packed, lengths, counts, sampled, share, threads, seed
):
    torch.set_num_threads(threads)
    folder = tmp_path_factory.mktemp("mix")
    known = None if share is None else random.Random(seed).sample(range(vocab), max(1, int(share * vocab)))
    fused, plain = both(folder, packed, hidden, vocab, known=known, **SHAPES[shape], **KINDS[kind])
    width = 3 * hidden
    mine, theirs = scattered(fused, lengths, seed, width), scattered(plain, lengths, seed + 1, width)
    ids = [[3] + [vocab - 1] * count for count in counts[: len(lengths)]]
    want = plain.block_hidden(theirs, ids)
    torch.testing.assert_close(fused.block_hidden(mine, ids), want, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(fused.logits(want), plain.logits(want), atol=2e-5, rtol=2e-5)
    how = [DraftSampling(0.8 * is_sampled, top_k=9, seed=seed) for is_sampled in sampled]
    proposed = fused.propose(requests_for(mine, counts, how))
    agree(proposed, plain.propose(requests_for(theirs, counts, how)))
    if known is not None:
        assert {token for one in proposed for token in one.tokens.tolist()} <= set(known)


@pytest.mark.parametrize("name", ["full", "sliding", "softcap"])
@pytest.mark.parametrize("packed", [True, False])
def test_golden_steps(name, packed):
    """Closer to the reference implementation's outputs than float32 needs to be."""
    expected = load_file(GOLDEN / name / "expected.safetensors")
    head = expected["lm_head.weight"]
    info = target_info(expected["embed_tokens.weight"], head, depth=12)
    if packed:
        info = replace(info, packed_head=pack(head, Precision.FLOAT32))
    drafter = load_drafter(GOLDEN / name, info)
    assert isinstance(drafter, FusedDFlashDrafter)
    state = drafter.new_state()
    for step in range(4):
        extend(drafter, state, expected[f"step{step}.target_hidden"], state.length)
        ids = expected[f"step{step}.block_ids"].tolist()
        hidden = drafter.block_hidden([state], [ids])
        torch.testing.assert_close(hidden, expected[f"step{step}.hidden"], atol=5e-6, rtol=0)
        torch.testing.assert_close(
            drafter.logits(hidden[1:]), expected[f"step{step}.logits"], atol=5e-6, rtol=0
        )
        (proposal,) = drafter.propose([draft_request(state, state.length, ids[0], len(ids) - 1)])
        assert proposal.tokens.tolist() == expected[f"step{step}.draft_tokens"].tolist()


# Company and threads


@pytest.mark.parametrize("precisions", PRECISIONS)
def test_company_changes_not_a_bit(tmp_path, precisions):
    fused, _ = both(tmp_path, precisions=precisions, vocab=700)
    states = scattered(fused, [0, 5, 64, 200, 130, 63], 3, 96)
    requests = requests_for(states, [7, 3, 1, 7, 2, 5])
    alone = [fused.propose([request])[0] for request in requests]
    torch.set_num_threads(2)
    for _ in range(5):
        for one, other in zip(fused.propose(requests), alone, strict=True):
            assert torch.equal(one.tokens, other.tokens)
            torch.testing.assert_close(one.confidence, other.confidence, atol=0, rtol=1e-6)


def test_ties_go_to_the_lowest_token_whoever_finds_them(tmp_path):
    """The same 40 head rows over and over: each best token has its equals in tiles that other threads work on."""
    vocab = 4000
    path = tiny_checkpoint(tmp_path / "drafter", block_size=8, vocab_size=vocab)
    target = tiny_target(vocab=vocab)
    head = target.head[:40].repeat(100, 1)
    info = replace(target.info, packed_head=pack(head, Precision.FLOAT32))
    drafter = load_drafter(path, info)
    states = scattered(drafter, [3, 70], 0, 96)
    torch.set_num_threads(2)
    for _ in range(20):
        for proposal in drafter.propose(requests_for(states, [7, 7])):
            assert max(proposal.tokens.tolist()) < 40
            assert float(proposal.confidence.max()) <= 1 / 100 + 1e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("precisions", [ALL_FLOAT, COARSE])
@pytest.mark.parametrize("packed", [True, False])
def test_only_the_sequence_that_is_not_finite_gets_nothing(tmp_path, bad, precisions, packed):
    fused, _ = both(tmp_path, packed, precisions=precisions)
    states = scattered(fused, [40, 70, 20], 0, 96)
    counts = [4, 5, 0]
    before = fused.propose(requests_for(states, counts))
    states[1].table.append(states[1].table[-1])
    spoiled = random_features(1, 4, 96)
    spoiled[0, 5] = bad
    extend(fused, states[1], spoiled, 70)
    after = fused.propose(requests_for(states, counts))
    assert [len(proposal.tokens) for proposal in after] == [4, 0, 0]
    assert [len(proposal.confidence) for proposal in after] == [4, 0, 0]
    assert torch.equal(after[0].tokens, before[0].tokens)


# The context


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float64])
def test_extending_writes_what_torch_writes(tmp_path, dtype, given):
    """In any dtype, from strided features, several sequences at once, in pieces when they are many."""
    fused, plain = both(tmp_path, dtype=dtype, precisions=ALL_FLOAT)
    parts = [random_features(n, n, 200)[:, ::2][:, :96].to(given) for n in (1, 300, 0, 511, 64, 700)]
    states = []
    for drafter in (fused, plain):
        states.append([drafter.new_state() for _ in parts])
        drafter.extend([ContextUpdate(s, part, 0) for s, part in zip(states[-1], parts, strict=True)])
    for mine, theirs, part in zip(*states, parts, strict=True):
        assert mine.length == theirs.length == len(part)
        assert mine.pages.data.dtype == dtype
        kept = [s.pages.data[:, s.table].flatten(1, 2)[:, : s.length].float() for s in (mine, theirs)]
        tolerance = 2e-5 if dtype == torch.float32 and given != torch.bfloat16 else 0.1
        torch.testing.assert_close(*kept, atol=tolerance, rtol=tolerance)


def test_one_sequence_twice_in_an_extension(tmp_path):
    fused, _ = both(tmp_path)
    once, twice = fused.new_state(), fused.new_state()
    features = random_features(70)
    extend(fused, once, features, 0)
    fused.extend([ContextUpdate(twice, features[:9], 0), ContextUpdate(twice, features[9:], 9)])
    assert twice.length == 70
    assert torch.equal(twice.pages.data, once.pages.data)


def test_pages_that_do_not_exist_are_refused(tmp_path):
    """Compiled code would read and write anywhere."""
    fused, _ = both(tmp_path)
    pages = fused.new_pages(2)
    before = pages.data.clone()
    for table in ([2], [-1]):
        state = fused.new_state(pages, table)
        with pytest.raises(RuntimeError, match="table"):
            extend(fused, state, random_features(3), 0)
        assert state.length == 0
        with pytest.raises(RuntimeError, match="table"):
            fused.propose([draft_request(fused.new_state(pages, table, 3), 3, 5, 2)])
    with pytest.raises(RuntimeError, match="table"):
        fused.propose([draft_request(fused.new_state(pages, [0], 65), 65, 5, 2)])
    assert torch.equal(pages.data, before)


@pytest.mark.parametrize("anchor", [-1, 61])
def test_tokens_that_do_not_exist_are_refused(tmp_path, anchor):
    fused, _ = both(tmp_path)
    with pytest.raises(IndexError):
        fused.propose([draft_request(fused.new_state(), 0, anchor, 2)])


# Precisions, and what is compiled


@pytest.mark.parametrize("precisions", PRECISIONS)
def test_coarser_precisions_are_the_same_up_to_rounding(tmp_path, precisions):
    head = precisions.head
    fused, plain = both(tmp_path, precisions=precisions, hidden=64)
    mine, theirs = scattered(fused, [3, 70], 0, 192), scattered(plain, [3, 70], 0, 192)
    ids = [[3] + [60] * 7, [9] + [60] * 4]
    want = plain.block_hidden(theirs, ids)
    similar = torch.nn.functional.cosine_similarity(fused.block_hidden(mine, ids), want, dim=-1)
    assert float(similar.min()) > 0.995
    logits = torch.nn.functional.cosine_similarity(fused.logits(want), plain.logits(want), dim=-1)
    assert float(logits.min()) > (0.98 if head is Precision.INT4 else 0.999)
    proposals = fused.propose(requests_for(mine, [7, 4]))
    logits = fused.logits(fused.block_hidden(mine, [[7] + [60] * 7, [8] + [60] * 4]))
    rows = torch.cat((logits[1:8], logits[9:]))
    assert torch.cat([proposal.tokens for proposal in proposals]).tolist() == rows.argmax(-1).tolist()


def test_a_finer_head_is_packed_anew_and_a_coarser_one_shared(tmp_path):
    path, target = tiny_checkpoint(tmp_path / "drafter"), tiny_target()
    for has, wanted, shared in (("int4", "int8", True), ("int8", "int8", True), ("float32", "int4", False)):
        head = pack(target.head, Precision(has))
        info = replace(target.info, packed_head=head)
        drafter = load_drafter(path, info, precisions=Precisions(Precision.FLOAT32, Precision(wanted)))
        assert isinstance(drafter, FusedDFlashDrafter)
        assert (drafter.packed_head is head) == shared


@pytest.mark.parametrize("rows", [1, 32, 61, 5000])
def test_repacking_in_parts_is_packing_as_a_whole(rows):
    weight = torch.randn(rows, 40, generator=torch.Generator().manual_seed(rows))
    fine = pack(weight, Precision.FLOAT32, torch.randn(rows))
    coarse = repacked(fine, Precision.INT4)
    assert torch.equal(coarse.unpack(), pack(weight, Precision.INT4).unpack())
    assert coarse.bias is fine.bias


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.INT8])
@pytest.mark.parametrize("rows", [1, 61, 5000])
def test_a_narrowed_head_gives_the_logits_of_its_tokens(rows, precision):
    luck = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(rows, 40, generator=luck), torch.randn(rows, generator=luck)
    some = torch.randperm(rows, generator=luck)[: max(1, rows // 3)].sort().values
    narrow = narrowed(pack(weight, precision, bias), some)
    assert (narrow.out_features, narrow.precision) == (len(some), precision)
    torch.testing.assert_close(
        narrow.unpack(),
        pack(weight, precision).unpack()[some],
        atol=2e-3 if precision is Precision.INT8 else 0,
        rtol=0,
    )
    assert narrow.bias is not None
    assert torch.equal(narrow.bias[: len(some)], bias[some])


@pytest.mark.parametrize(
    "options", [{"dflash2": True}, {"top": {"hidden_act": "relu"}}, {"top": {"hidden_act": "gelu"}}]
)
def test_what_is_not_covered_stays_in_torch(tmp_path, options):
    drafter = load_drafter(tiny_checkpoint(tmp_path / "drafter", **options), tiny_target().info)
    assert isinstance(drafter, DFlashDrafter)


def test_a_float16_target_stays_in_torch(tmp_path):
    info = tiny_target(dtype=torch.float16).info
    assert isinstance(load_drafter(tiny_checkpoint(tmp_path / "drafter"), info), DFlashDrafter)


def test_float32_is_float32_and_bfloat16_what_is_fast(tmp_path):
    path = tiny_checkpoint(tmp_path / "drafter")
    exact, rounded = (load_drafter(path, tiny_target(dtype=d).info) for d in (torch.float32, torch.bfloat16))
    assert exact.precisions == ALL_FLOAT
    assert rounded.precisions == Precisions.default(torch.bfloat16)
    assert rounded.new_pages(1).data.dtype == torch.bfloat16
