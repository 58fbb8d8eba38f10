"""The end of the nucleus is exact: the search for it takes short cuts, and none may show."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftproof.verify import SamplingInfo, compute_dflash_sampling_correct_drafts_and_bonus, kernels

SHAPES = {
    "peaked": lambda rng, vocab: np.where(
        rng.random(vocab) < 0.01, rng.normal(size=vocab) + 14, rng.normal(size=vocab) * 2
    ),
    "flat": lambda rng, vocab: rng.normal(size=vocab),
    "heavy": lambda rng, vocab: rng.normal(size=vocab) * 3,
    "cold": lambda rng, vocab: (
        rng.normal(size=vocab) * 0.01 - 3000.0
    ),  # far beyond what the rough sums can take
    "steps": lambda rng, vocab: (
        np.floor(rng.normal(size=vocab) * 3) / 2
    ),  # hundreds of tokens tie at every step
    "masked": lambda rng, vocab: np.where(rng.random(vocab) < 0.9, -np.inf, rng.normal(size=vocab) * 2),
}


def kept(row: torch.Tensor, tokens: list[int], temperature: float, top_p: float) -> list[bool]:
    """Which tokens are in the nucleus: a draft with a coin of 0 is accepted exactly when it is."""
    accepted, _ = compute_dflash_sampling_correct_drafts_and_bonus(
        candidates=torch.tensor([[0, token] for token in tokens]),
        next_token_logits=row.expand(2 * len(tokens), -1),
        sampling_info=SamplingInfo.of(temperature=temperature, top_p=top_p, batch_size=len(tokens)),
        uniform_samples=torch.zeros(len(tokens), 2),
    )
    return [bool(a) for a in accepted]


@pytest.mark.parametrize("vocab", [700, 20_000, 152_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_nucleus_ends_where_it_should_to_nine_digits(shape: str, vocab: int, path: str) -> None:
    if path == "torch" and vocab > 20_000:
        pytest.skip("slow, and no short cuts there")
    rng = np.random.default_rng(vocab)
    row = SHAPES[shape](rng, vocab).astype(np.float32)
    checked = 0
    for temperature in (0.8, 1.5):
        weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
        order = np.argsort(-row.astype(np.float64), kind="stable")
        before = np.concatenate([[0.0], np.cumsum(weights[order])])
        total = before[-1]
        for share in (0.05, 0.5, 0.95, 0.999):
            rank = max(1, int(np.searchsorted(before, share * total)))
            if rank + 1 >= vocab or weights[order[rank]] / total < 1e-8:
                continue
            last, following = int(order[rank - 1]), int(order[rank])
            edge = before[rank] / total  # the mass that ranks before `following`
            tensor = torch.from_numpy(row)
            assert kept(tensor, [last, following], temperature, edge * (1 + 1e-9)) == [True, True]
            assert kept(tensor, [last, following], temperature, edge * (1 - 1e-9)) == [True, False]
            checked += 1
    assert checked >= 4


def test_short_cuts_are_really_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels sort a handful of tokens, so a row of 152,000 takes far less memory traffic than a sort would."""
    pytest.importorskip("numba")
    from draftproof.verify.kernels import compiled

    row = torch.randn(152_000, generator=torch.Generator().manual_seed(0)).numpy()
    rows = compiled.Rows(row, np.empty(0, np.uint16), compiled.FLOAT32, row.size, 1, row.size)
    scratch = compiled.scratch_for(rows)
    setting = compiled._setting_of(0.8, 1 << 30, 0.95, 0.0)
    fault, rank, rough = compiled._scan(row, setting.scale, True, scratch.tops, scratch.rough)
    exact = np.exp((row.astype(np.float64) - row.max()) / 0.8).sum()
    assert fault == compiled.SOUND
    assert compiled._value_of(rank) == row.max()
    assert rough == pytest.approx(exact, rel=compiled._rough_error(np.float64(row.max()), setting.scale))
    assert rough != exact
    scratch.ids[:] = -1
    compiled._select(row, np.float64(row.max()), setting, rough, scratch)
    assert (scratch.ids >= 0).sum() < 0.2 * row.size, "the whole nucleus was listed, not a window"


def test_powers_are_accurate() -> None:
    pytest.importorskip("numba")
    from draftproof.verify.kernels import compiled

    values = np.concatenate([np.linspace(-690, 0, 100_001), [-np.inf, -3e38]]).astype(np.float32)
    out = np.empty(values.size)
    compiled._power_block(values, values.size, 0.0, 1.4426950408889634, out)
    exact = np.exp(values.astype(np.float64))
    assert np.abs(out[:-2] / exact[:-2] - 1).max() < 3e-13
    assert out[-2:].tolist() == [0.0, 0.0]


def test_which_path_runs_depends_on_the_tensor_alone() -> None:
    numba = pytest.importorskip("numba")
    assert numba
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert kernels.available(torch.zeros(1, 4, dtype=dtype))
    assert not kernels.available(torch.zeros(1, 4, dtype=torch.float64))
    assert not kernels.available(torch.zeros(1, 4, device="meta"))
