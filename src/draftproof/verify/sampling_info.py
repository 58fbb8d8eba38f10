"""How each row is to be sampled: what callers pass in, and the form the rules compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

TOP_K_ALL = 1 << 30
"""The top-k of a row that keeps every token; any value >= the vocabulary means the same."""


class SamplingInfoLike(Protocol):
    """Any object with these attributes will do. A false `need_*` flag means that its vector is not looked at.

    `min_ps` and `need_min_p_sampling` may be missing altogether.
    """

    @property
    def temperatures(self) -> torch.Tensor: ...
    @property
    def top_ks(self) -> torch.Tensor: ...
    @property
    def top_ps(self) -> torch.Tensor: ...
    @property
    def need_top_k_sampling(self) -> bool: ...
    @property
    def need_top_p_sampling(self) -> bool: ...


@dataclass(frozen=True)
class SamplingInfo:
    """Sampling settings of a batch, one entry a sequence (or one a row, for free-standing rows).

    Attributes:
        temperatures: float ``[bs, 1]``, each > 0.
        top_ks: int ``[bs]``, each >= 1; at least the vocabulary means all.
        top_ps: float ``[bs]``, each in (0, 1].
        min_ps: float ``[bs]``, each in [0, 1], or None.
        need_top_k_sampling: whether any row limits the number of tokens; false ignores `top_ks`.
        need_top_p_sampling: whether any row limits the mass; false ignores `top_ps`.
        need_min_p_sampling: whether any row has a floor relative to its best token; false ignores `min_ps`.
    """

    temperatures: torch.Tensor
    top_ks: torch.Tensor
    top_ps: torch.Tensor
    min_ps: torch.Tensor | None = None
    need_top_k_sampling: bool = False
    need_top_p_sampling: bool = False
    need_min_p_sampling: bool = False

    @staticmethod
    def of(
        *,
        temperature: float | Sequence[float] = 1.0,
        top_k: int | Sequence[int] = 0,
        top_p: float | Sequence[float] = 1.0,
        min_p: float | Sequence[float] = 0.0,
        batch_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> SamplingInfo:
        """Settings from plain numbers, as a user would give them.

        A number holds for the whole batch; a sequence gives one value an entry. ``top_k <= 0`` keeps all tokens.
        Temperature 0 means greedy and becomes temperature 1 with top-k 1: all mass on the most likely token.
        Other values are taken as they come; the rules refuse what is out of range.

        Args:
            temperature, top_k, top_p, min_p: a number, or `batch_size` of them.
            batch_size: number of entries; taken from the first sequence given, if any is.
            device: where the tensors go.

        Raises:
            ValueError: sequences of different lengths.
        """
        sizes = {len(v) for v in (temperature, top_k, top_p, min_p) if isinstance(v, Sequence)}
        if len(sizes) > 1:
            raise ValueError(f"sampling settings differ in length: {sorted(sizes)}")
        size = sizes.pop() if sizes else batch_size
        temperatures = _spread(temperature, size)
        greedy = [t == 0 for t in temperatures]
        ks = [TOP_K_ALL if k <= 0 else min(int(k), TOP_K_ALL) for k in _spread(top_k, size)]
        ks = [1 if g else k for g, k in zip(greedy, ks, strict=True)]
        temperatures = [1.0 if g else t for g, t in zip(greedy, temperatures, strict=True)]
        ps, floors = _spread(top_p, size), _spread(min_p, size)
        return SamplingInfo(
            temperatures=torch.tensor(temperatures, dtype=torch.float64, device=device).view(size, 1),
            top_ks=torch.tensor(ks, dtype=torch.int64, device=device),
            top_ps=torch.tensor(ps, dtype=torch.float64, device=device),
            min_ps=torch.tensor(floors, dtype=torch.float64, device=device),
            need_top_k_sampling=any(k != TOP_K_ALL for k in ks),
            need_top_p_sampling=any(p != 1.0 for p in ps),
            need_min_p_sampling=any(m != 0.0 for m in floors),
        )


def _spread(value: float | Sequence[float], size: int) -> list[float]:
    return [float(v) for v in value] if isinstance(value, Sequence) else [float(value)] * size


@dataclass(frozen=True)
class Filters:
    """Settings after the contract's checks: every vector there, on the logits' device, neutral where not needed.

    Attributes:
        temperatures: float64 ``[rows]``.
        top_ks: int64 ``[rows]``; `TOP_K_ALL` where off.
        top_ps: float64 ``[rows]``; 1.0 where off.
        min_ps: float64 ``[rows]``; 0.0 where off.
        ranked: whether any row may need its tokens in order (top-k or top-p asked for).
    """

    temperatures: torch.Tensor
    top_ks: torch.Tensor
    top_ps: torch.Tensor
    min_ps: torch.Tensor
    ranked: bool

    def take(self, index: torch.Tensor) -> Filters:
        """The filters of some rows, in the order of `index`."""
        return Filters(
            self.temperatures[index], self.top_ks[index], self.top_ps[index], self.min_ps[index], self.ranked
        )
