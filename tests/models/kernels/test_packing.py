"""Packed weights hold what they were given, as closely as their precision allows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.models.kernels.packing import (
    GROUP,
    PANEL,
    TILE,
    Activations,
    Precision,
    available,
    interleaved,
    pack,
)

SHAPES = [(32, 32), (1, 1), (33, 31), (100, 75), (7, 200), (2100, 40)]
WHOLE = (Precision.INT8, Precision.INT4)


def random_weight(shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(shape, generator=generator) * 0.1
    return rows * torch.rand(shape[0], 1, generator=generator)


def groups_of(weight: torch.Tensor) -> list[torch.Tensor]:
    return list(weight.split(GROUP, 1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_floats_are_kept(shape: tuple[int, int]) -> None:
    weight = random_weight(shape)
    assert torch.equal(pack(weight, Precision.FLOAT32).unpack(), weight)
    assert torch.equal(pack(weight, Precision.BFLOAT16).unpack(), weight.bfloat16().float())
    half = weight.bfloat16()
    assert torch.equal(pack(half, Precision.FLOAT32).unpack(), half.float())


@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 130)),
    seed=st.integers(0, 999),
    shift=st.floats(-2, 2),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_integers_are_off_by_half_a_step_at_most(shape: tuple[int, int], seed: int, shift: float) -> None:
    weight = random_weight(shape, seed) + shift
    for precision in WHOLE:
        back = pack(weight, precision).unpack()
        for given_, found in zip(groups_of(weight), groups_of(back), strict=True):
            size = given_.abs().amax(1, keepdim=True)
            spread = given_.amax(1, keepdim=True) - given_.amin(1, keepdim=True)
            step = size / 127 if precision is Precision.INT8 else spread / 15
            # Half a step, and what rounding scale and minimum to float16 adds: at most half a unit in the last of 11 bits, of
            # the scale 127 (15) times, of the minimum once; below float16's normal range, half of 2**-24.
            slack = size * 2.0**-11 + (spread * 2.0**-11 if precision is Precision.INT4 else 0)
            slack = slack + (128 if precision is Precision.INT8 else 16) * 2.0**-25
            assert bool(((found - given_).abs() <= step / 2 * 1.001 + slack).all())


@given(
    rows=st.integers(1, 40), groups=st.integers(1, 5), cut=st.integers(0, GROUP - 2), seed=st.integers(0, 999)
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_weight_that_has_been_q4_1_is_met_again(rows: int, groups: int, cut: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scale = (torch.rand(rows, groups, 1, generator=generator) * 0.02 + 1e-3).half().float()
    minimum = (-torch.rand(rows, groups, 1, generator=generator) * 0.2).half().float()
    whole = torch.randint(0, 16, (rows, groups, GROUP), generator=generator)
    whole[..., 0], whole[..., 1] = 0, 15  # the format's own rule sets the range by the least and the greatest
    weight = (whole * scale + minimum).flatten(1)[:, : groups * GROUP - cut]
    assert torch.equal(pack(weight, Precision.INT4).unpack(), weight)


def test_groups_of_zeros_and_of_one_number() -> None:
    for precision in Precision:
        zeros = torch.zeros(5, 64)
        assert torch.equal(pack(zeros, precision).unpack(), zeros)
    same = torch.full((3, 32), 0.375)
    assert torch.equal(pack(same, Precision.INT4).unpack(), same)


@pytest.mark.parametrize("precision", list(Precision))
def test_sizes_and_padding(precision: Precision) -> None:
    weight, bias = random_weight((70, 50)), torch.randn(70).bfloat16()
    packed = pack(weight, precision, bias)
    assert (packed.out_features, packed.in_features) == (70, 50)
    assert (packed.padded_out, packed.padded_in, packed.tiles) == (96, 64, 3)
    assert packed.data.data_ptr() % 64 == 0
    assert packed.data.shape[1] % 64 == 0
    assert packed.bias is not None
    assert torch.equal(packed.bias[:70], bias.float())
    assert not bool(packed.bias[70:].any())
    assert packed.nbytes == packed.data.numel() + 4 * 96
    assert packed.address() == (packed.data.data_ptr(), 0, packed.bias.data_ptr())
    assert pack(weight, precision).address()[2] == 0


def test_bytes_per_weight() -> None:
    sizes = {precision: pack(torch.randn(320, 320), precision).nbytes * 8 / 320**2 for precision in Precision}
    assert sizes == {
        Precision.FLOAT32: 32,
        Precision.BFLOAT16: 16,
        Precision.INT8: 8.5,
        Precision.INT4: 5,
    }


def test_interleaved() -> None:
    gate, up = random_weight((40, 8), 1), random_weight((40, 8), 2)
    both = interleaved(gate, up)
    assert both.shape == (96, 8)
    for panel in range(3):
        rows = min(PANEL, 40 - panel * PANEL)
        start = panel * TILE
        assert torch.equal(both[start : start + rows], gate[panel * PANEL : panel * PANEL + rows])
        start += PANEL
        assert torch.equal(both[start : start + rows], up[panel * PANEL : panel * PANEL + rows])
    assert not bool(both[64 + 8 : 80].any())
    with pytest.raises(ValueError, match="one shape"):
        interleaved(gate, up[:39])


@pytest.mark.parametrize("precision", WHOLE)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e30])
def test_numbers_that_integers_cannot_hold_are_refused(precision: Precision, wrong: float) -> None:
    weight = random_weight((40, 40))
    weight[33, 35] = wrong
    with pytest.raises(ValueError, match="cannot be stored in integers"):
        pack(weight, precision)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="two dimensions"):
        pack(torch.zeros(4), Precision.INT8)
    with pytest.raises(ValueError, match="not empty"):
        pack(torch.zeros(0, 4), Precision.INT8)
    with pytest.raises(ValueError, match="one number per output channel"):
        pack(torch.zeros(4, 4), Precision.INT8, torch.zeros(5))


def test_where_it_runs() -> None:
    for precision in Precision:
        assert available(precision, torch.device("cpu"))
        assert not available(precision, torch.device("cuda"))


@pytest.mark.parametrize("precision", list(Precision))
def test_room_for_activations(precision: Precision) -> None:
    room = Activations.empty(5, 64, precision)
    assert room.values.shape == (5, 64)
    if precision in WHOLE:
        assert room.scales is not None
        assert room.sums is not None
        assert room.scales.shape == room.sums.shape == (5, 2)
        assert room.sums.element_size() == 4
        assert 0 not in room.address()
    else:
        assert room.address()[1:] == (0, 0)
