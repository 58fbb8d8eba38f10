"""The DFlash drafters as the engine meets them: state, batching, sampling, borrowed and own weights."""

from __future__ import annotations

import pytest
import torch
from drafter_support import VOCAB, draft_request, extend, random_features, tiny_checkpoint, tiny_target
from safetensors.torch import load_file, save_file

from draftproof.errors import DrafterError
from draftproof.models.drafters import DraftSampling, load_drafter
from draftproof.models.kv import KEY_BLOCK
from draftproof.verify import SamplingInfo, gumbel_choice, gumbel_noise

KINDS = {
    "dflash": {},
    "windowed": {
        "top": {"layer_types": ["sliding_attention", "full_attention"]},
        "dflash_config": {"swa_window_size": 4, "attention_sink_bias": True},
    },
    "dflash2": {"dflash2": True},
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def make(tmp_path, dtype=torch.float32, **options):
    return load_drafter(
        tiny_checkpoint(tmp_path / "drafter", block_size=6, **options), tiny_target(dtype=dtype).info
    )


def started(drafter, length, seed=0):
    state = drafter.new_state()
    extend(drafter, state, random_features(length, seed), 0)
    return state


def block_logits(drafter, state, anchor, count):
    hidden = drafter.block_hidden([state], [[anchor] + [drafter.config.mask_token_id] * count])
    return hidden[1:], drafter.logits(hidden[1:])


def context(state):
    """What a state holds, in order of position, ``[layers, length, 2, kv_heads, head_dim]``."""
    return state.pages.data[:, state.table].flatten(1, 2)[:, : state.length]


def test_what_it_says_of_itself(tmp_path, kind):
    drafter = make(tmp_path, **kind)
    assert drafter.name == ("dflash2" if "dflash2" in kind else "dflash")
    assert drafter.max_draft_tokens == 5
    assert drafter.tap_layer_ids == (1, 4, 8)


# The state


@pytest.mark.parametrize("text", [0, 7, 8, 10, 20])
def test_proposing_out_of_step_raises(tmp_path, text):
    """State and text must differ by exactly the anchor: not by nothing, not by two."""
    drafter = make(tmp_path)
    state = started(drafter, 8)
    with pytest.raises(DrafterError) as caught:
        drafter.propose([draft_request(state, text - 1 if text else 0, 3, 2)])
    assert caught.value.code == "DP316"
    assert "8 tokens" in caught.value.message


@pytest.mark.parametrize("start", [0, 7, 9])
def test_extending_out_of_step_raises(tmp_path, start):
    drafter = make(tmp_path)
    state = started(drafter, 8)
    with pytest.raises(DrafterError) as caught:
        extend(drafter, state, random_features(2), start)
    assert caught.value.code == "DP316"
    assert state.length == 8


@pytest.mark.parametrize("features", [None, torch.zeros(2, 64), torch.zeros(96)])
def test_features_of_the_wrong_shape_raise(tmp_path, features):
    drafter = make(tmp_path)
    with pytest.raises(DrafterError) as caught:
        extend(drafter, drafter.new_state(), features, 0)
    assert caught.value.code == "DP316"


def test_extending_by_nothing(tmp_path):
    drafter = make(tmp_path)
    state = started(drafter, 3)
    extend(drafter, state, random_features(0), 3)
    assert state.length == 3


def test_chunks_do_not_matter(tmp_path, kind):
    """However the context arrives, and across the cache's growth, it is the same context."""
    drafter = make(tmp_path, **kind)
    features = random_features(700)
    whole, pieces = started(drafter, 700), drafter.new_state()
    for piece in (1, 2, 252, 1, 1, 300, 143):
        extend(drafter, pieces, features[pieces.length : pieces.length + piece], pieces.length)
    assert pieces.length == 700
    torch.testing.assert_close(context(pieces), context(whole), atol=1e-5, rtol=1e-5)
    a, b = (drafter.propose([draft_request(state, 700, 3, 5)])[0].tokens for state in (whole, pieces))
    assert a.tolist() == b.tolist()


def test_capacity_grows_by_doubling(tmp_path):
    drafter = make(tmp_path)
    state = drafter.new_state()
    moves, last = 0, state.pages.data.data_ptr()
    for _ in range(1500):
        extend(drafter, state, random_features(1), state.length)
        if state.pages.data.data_ptr() != last:
            moves, last = moves + 1, state.pages.data.data_ptr()
    assert moves <= 3  # 256 -> 512 -> 1024 -> 2048
    assert state.pages.num_pages * KEY_BLOCK < 2 * 1500
    assert state.table == list(range(state.pages.num_pages))


def test_proposing_leaves_the_context_alone(tmp_path, kind):
    """A block's own keys and values are dropped: neither later proposals nor later context see them."""
    drafter = make(tmp_path, **kind)
    features = random_features(12)
    untouched, used = drafter.new_state(), drafter.new_state()
    extend(drafter, untouched, features[:8], 0)
    extend(drafter, used, features[:8], 0)
    first = drafter.propose([draft_request(used, 8, 3, 5)])[0].tokens
    assert torch.equal(used.pages.data, untouched.pages.data)
    assert used.length == 8
    assert drafter.propose([draft_request(used, 8, 3, 5)])[0].tokens.tolist() == first.tolist()
    for state in (untouched, used):
        extend(drafter, state, features[8:], 8)
    torch.testing.assert_close(
        block_logits(drafter, used, 9, 5)[1], block_logits(drafter, untouched, 9, 5)[1], atol=0, rtol=0
    )


def test_what_lies_beyond_the_context_is_never_read(tmp_path, kind):
    drafter = make(tmp_path, **kind)
    state = started(drafter, 8)
    want = block_logits(drafter, state, 3, 5)[1]
    state.pages.data[:, 0, 8:] = float("nan")
    state.pages.data[:, 1:] = float("nan")
    assert torch.equal(block_logits(drafter, state, 3, 5)[1], want)


def test_at_most_what_was_asked_for(tmp_path):
    drafter = make(tmp_path)
    state = started(drafter, 4)
    counts = [len(drafter.propose([draft_request(state, 4, 3, n)])[0].tokens) for n in (1, 2, 5, 6, 100)]
    assert counts == [1, 2, 5, 5, 5]


def test_no_requests(tmp_path):
    assert make(tmp_path).propose([]) == []


# Many sequences in a pass


@pytest.mark.parametrize("sampling", [DraftSampling(), DraftSampling(temperature=0.9, top_p=0.9, seed=5)])
def test_sequences_do_not_influence_each_other(tmp_path, kind, sampling):
    drafter = make(tmp_path, **kind)
    requests = []
    for seed, (length, count) in enumerate([(9, 5), (0, 3), (30, 1), (4, 5), (300, 2)]):
        requests.append(
            draft_request(started(drafter, length, seed), length, 10 + seed, count, sampling, 3 * seed)
        )
    alone = [drafter.propose([request])[0].tokens.tolist() for request in requests]
    together = [proposal.tokens.tolist() for proposal in drafter.propose(requests)]
    assert together == alone
    backwards = [proposal.tokens.tolist() for proposal in drafter.propose(requests[::-1])]
    assert backwards[::-1] == alone
    assert len({tuple(tokens) for tokens in alone}) == len(alone)


# Sampling


@pytest.mark.parametrize("truncation", [{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.1}])
@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**64 - 1, -1])
def test_sampled_drafts_use_the_targets_noise(tmp_path, truncation, seed):
    drafter = make(tmp_path)
    state = started(drafter, 6)
    sampling = DraftSampling(temperature=0.8, seed=seed, **truncation)
    tokens = drafter.propose([draft_request(state, 6, 3, 5, sampling, output_position=11)])[0].tokens
    want = gumbel_choice(
        logits=block_logits(drafter, state, 3, 5)[1],
        sampling_info=SamplingInfo.of(temperature=0.8, batch_size=5, **truncation),
        seeds=torch.tensor([seed if seed < 2**63 else seed - 2**64] * 5),
        positions=torch.arange(11, 16),
    )
    assert tokens.tolist() == want.tolist()


@pytest.mark.parametrize("changed", [{"seed": 6}, {"output_position": 12}])
def test_seed_and_position_matter(tmp_path, changed):
    drafter = make(tmp_path)
    state = started(drafter, 6)

    def draw(seed=5, output_position=11):
        sampling = DraftSampling(temperature=2.0, seed=seed)
        return drafter.propose([draft_request(state, 6, 3, 5, sampling, output_position)])[0].tokens.tolist()

    assert draw() == draw()
    assert draw() != draw(**changed)


def test_noise_belongs_to_positions_not_slots(tmp_path):
    """Equal logits at a position give equal choices, whichever slot of whichever block it fell on."""
    drafter = make(
        tmp_path, dflash_config={"output_multiplier": 1e-30}
    )  # all but flat: the noise alone decides
    state = started(drafter, 6)
    sampling = DraftSampling(temperature=1.0, seed=5)
    first = drafter.propose([draft_request(state, 6, 3, 5, sampling, 10)])[0].tokens.tolist()
    later = drafter.propose([draft_request(state, 6, 3, 5, sampling, 12)])[0].tokens.tolist()
    assert later[:3] == first[2:]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_selector_above_temperature_zero(tmp_path, temperature):
    """Left to right: the argmax of score / T + g over the candidates, g at token and output position."""
    folder = tiny_checkpoint(tmp_path / "drafter", block_size=6, dflash2=True)
    drafter = load_drafter(folder, tiny_target().info)
    weights = load_file(folder / "model.safetensors")
    state = started(drafter, 6)
    hidden, logits = block_logits(drafter, state, 3, 5)
    previous, want = 3, []
    for slot in range(5):
        candidates = logits[slot].topk(6).indices.sort().values
        projected = weights["candidate_selector.hidden_projection.weight"] @ hidden[slot]
        edges = weights["candidate_selector.successor_codebook.weight"][candidates] @ (
            weights["candidate_selector.predecessor_codebook.weight"][previous] * projected
        )
        noise = gumbel_noise(torch.tensor([9]), torch.tensor([20 + slot]), candidates)
        previous = int(candidates[((logits[slot][candidates] + edges) / temperature + noise).argmax()])
        want.append(previous)
    sampling = DraftSampling(temperature=temperature, seed=9)
    tokens = drafter.propose([draft_request(state, 6, 3, 5, sampling, 20)])[0].tokens
    assert tokens.tolist() == want


def test_greedy_ties_go_to_the_lowest_token(tmp_path):
    drafter = make(tmp_path, dflash_config={"output_multiplier": 0.0})
    assert drafter.propose([draft_request(started(drafter, 6), 6, 3, 5)])[0].tokens.tolist() == [0] * 5


# What it borrows and what it brings


def with_own(folder, **own):
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, **own}, folder / "model.safetensors")


def test_own_embedding_and_head_are_used(tmp_path):
    target = tiny_target()
    folder = tiny_checkpoint(tmp_path / "drafter", block_size=6)
    other = tiny_target(seed=8)
    with_own(folder, **{"embed_tokens.weight": other.info.embedding, "lm_head.weight": other.head})
    own = load_drafter(folder, target.info)
    plain = load_drafter(tiny_checkpoint(tmp_path / "plain", block_size=6), other.info)
    a, b = block_logits(own, started(own, 6), 3, 5)[1], block_logits(plain, started(plain, 6), 3, 5)[1]
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embedding_is_the_head_only_where_the_config_says_so(tmp_path, tied):
    target, other = tiny_target(), tiny_target(seed=8)
    folder = tiny_checkpoint(tmp_path / "drafter", block_size=6, top={"tie_word_embeddings": tied})
    with_own(folder, **{"embed_tokens.weight": other.info.embedding})
    drafter = load_drafter(folder, target.info)
    hidden, logits = block_logits(drafter, started(drafter, 6), 3, 5)
    head = other.info.embedding if tied else target.head
    torch.testing.assert_close(logits, hidden @ head.T, atol=1e-5, rtol=1e-5)


def test_tie_without_own_embedding_borrows_the_targets_head(tmp_path):
    drafter = make(tmp_path, top={"tie_word_embeddings": True})
    hidden, logits = block_logits(drafter, started(drafter, 6), 3, 5)
    torch.testing.assert_close(logits, hidden @ tiny_target().head.T, atol=1e-5, rtol=1e-5)


def test_bfloat16_follows_the_target(tmp_path, kind):
    """The same numbers in bfloat16, up to its rounding."""
    exact, rounded = make(tmp_path / "a", **kind), make(tmp_path / "b", torch.bfloat16, **kind)
    assert rounded.new_state().pages.data.dtype == torch.bfloat16
    want = block_logits(exact, started(exact, 12), 3, 5)[1]
    got = block_logits(rounded, started(rounded, 12), 3, 5)[1]
    assert got.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(want, got.float(), dim=-1).min() > 0.98
    tokens = rounded.propose([draft_request(started(rounded, 12), 12, 3, 5)])[0].tokens
    assert tokens.dtype == torch.int64
    assert all(0 <= token < VOCAB for token in tokens.tolist())


def test_dtype_may_differ_from_the_targets(tmp_path):
    folder = tiny_checkpoint(tmp_path / "drafter", block_size=6)
    drafter = load_drafter(folder, tiny_target(dtype=torch.bfloat16).info, dtype=torch.float32)
    state = started(drafter, 6)
    assert state.pages.data.dtype == torch.float32
    assert len(drafter.propose([draft_request(state, 6, 3, 5)])[0].tokens) == 5


def test_proposals_can_be_written_to(tmp_path):
    """They are ordinary tensors, not bound to inference mode."""
    drafter = make(tmp_path)
    tokens = drafter.propose([draft_request(started(drafter, 6), 6, 3, 5)])[0].tokens
    tokens += 1
    assert not tokens.is_inference()
