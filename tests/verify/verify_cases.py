"""Random verification problems for property tests: odd shapes, ties, masks, tiny supports, every dtype and layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from verify_reference import Setting

from draftproof.verify import (
    TOP_K_ALL,
    SamplingInfo,
    compute_dflash_sampling_correct_drafts_and_bonus,
    gumbel_choice,
    verify_drafter_invariant,
    verify_rejection,
)

KINDS = ("normal", "peaked", "rounded", "equal", "masked", "one-token", "signed-zeros", "wide")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass
class Case:
    """One batch. `settings` says in plain terms what `info` says in tensors."""

    candidates: torch.Tensor
    logits: torch.Tensor
    info: SamplingInfo
    settings: list[Setting]
    seeds: torch.Tensor
    positions: torch.Tensor
    lens: torch.Tensor
    coins: torch.Tensor
    finals: torch.Tensor
    draft_probs: torch.Tensor

    @property
    def n(self) -> int:
        return self.candidates.shape[1]

    def rows(self, b: int) -> list[list[float]]:
        return self.logits[b * self.n : (b + 1) * self.n].to(torch.float64).tolist()


def make_logits(rng: np.random.Generator, rows: int, vocab: int, kind: str) -> np.ndarray:
    x = rng.normal(size=(rows, vocab))
    if kind == "peaked":
        x *= 5.0
    elif kind == "rounded":
        x = np.round(x * 2) / 2
    elif kind == "equal":
        x = np.zeros_like(x) + rng.normal()
    elif kind == "masked":
        x[rng.random(x.shape) < 0.5] = -np.inf
        x[np.arange(rows), rng.integers(0, vocab, rows)] = 0.3
    elif kind == "one-token":
        x[:] = -np.inf
        x[np.arange(rows), rng.integers(0, vocab, rows)] = -7.0
    elif kind == "signed-zeros":
        x = np.where(rng.random(x.shape) < 0.5, 0.0, -0.0)
        x[rng.random(x.shape) < 0.3] = -1.0
    elif kind == "wide":
        x *= 300.0
    return x


def make_case(seed: int, bs: int, n: int, vocab: int, kind: str, dtype: torch.dtype, layout: str) -> Case:
    """Everything from a few numbers. Drafts are drawn so that all accepted lengths come up."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(make_logits(rng, bs * n, vocab, kind)).to(dtype)
    logits = lay_out(logits, layout)
    temperature = rng.choice([0.0, 0.3, 0.8, 1.0, 1.7], size=bs).tolist()
    top_k = rng.choice([0, 1, 2, 5, 40, vocab], size=bs).tolist()
    top_p = rng.choice([1.0, 1.0, 0.95, 0.7, 0.2], size=bs).tolist()
    min_p = rng.choice([0.0, 0.0, 0.05, 0.4], size=bs).tolist()
    info = SamplingInfo.of(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    settings = [
        Setting(
            info.temperatures[b, 0].item(),
            None if int(info.top_ks[b]) == TOP_K_ALL else int(info.top_ks[b]),
            top_p[b],
            min_p[b],
        )
        for b in range(bs)
    ]
    seeds = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, size=bs))
    positions = torch.from_numpy(rng.choice([0, 1, 17, 2**31, 2**40], size=bs))
    candidates = torch.from_numpy(rng.integers(0, vocab, size=(bs, n)))
    for t in range(n - 1):  # mostly what the target would choose or likes best, sometimes anything
        rows = logits[t::n]
        likely = gumbel_choice(logits=rows, sampling_info=info, seeds=seeds, positions=positions + t)
        if rng.random() < 0.3:
            likely = rows.to(torch.float64).argmax(-1)
        candidates[:, t + 1] = torch.where(
            torch.from_numpy(rng.random(bs) < 0.8), likely, candidates[:, t + 1]
        )
    coins, finals = rng.random((bs, n)), rng.random(bs)
    coins[rng.random((bs, n)) < 0.3] = 0.0
    finals[rng.random(bs) < 0.3] = 0.0
    q = np.exp(rng.normal(size=(bs, n - 1, vocab)) * rng.choice([0.0, 1.0, 4.0]))
    q[rng.random(q.shape) < 0.2] = 0.0
    for b in range(bs):
        for t in range(n - 1):
            q[b, t, int(candidates[b, t + 1])] += 0.1  # the drafted token has mass
    q /= q.sum(-1, keepdims=True)
    return Case(
        candidates=candidates,
        logits=logits,
        info=info,
        settings=settings,
        seeds=seeds,
        positions=positions,
        lens=torch.from_numpy(rng.integers(0, n, size=bs)),
        coins=torch.from_numpy(coins),
        finals=torch.from_numpy(finals),
        draft_probs=torch.from_numpy(q).to(torch.float64 if rng.random() < 0.5 else torch.float32),
    )


def lay_out(logits: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in another memory layout."""
    if layout == "strided-rows":
        return torch.stack([logits, torch.full_like(logits, torch.nan)], 1)[:, 0]
    if layout == "strided-columns":
        return torch.stack([torch.full_like(logits, torch.nan), logits], -1)[..., 1]
    if layout == "transposed":
        return logits.t().contiguous().t()
    if layout == "offset":
        return torch.cat([torch.full_like(logits[:1], torch.nan), logits])[1:]
    return logits


LAYOUTS = ("plain", "strided-rows", "strided-columns", "transposed", "offset")

cases = st.builds(
    make_case,
    seed=st.integers(0, 2**32 - 1),
    bs=st.integers(1, 4),
    n=st.integers(1, 5),
    vocab=st.sampled_from([2, 3, 5, 17, 63, 64, 65, 200, 513, 1100]),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
)


RULES = ("target-only", "drafter-invariant", "rejection")


def outcome(case: Case, rule: str) -> tuple[list[int], list[int]]:
    """(accepted, bonus) of every sequence under a rule."""
    calls = {
        "target-only": lambda: compute_dflash_sampling_correct_drafts_and_bonus(
            candidates=case.candidates, next_token_logits=case.logits, sampling_info=case.info,
            uniform_samples=case.coins, uniform_samples_for_final_sampling=case.finals,
        ),
        "drafter-invariant": lambda: verify_drafter_invariant(
            candidates=case.candidates, next_token_logits=case.logits, sampling_info=case.info,
            seeds=case.seeds, positions=case.positions, draft_lens=case.lens,
        ),
        "rejection": lambda: verify_rejection(
            candidates=case.candidates, next_token_logits=case.logits, draft_probs=case.draft_probs,
            sampling_info=case.info, uniform_samples=case.coins, uniform_samples_for_final_sampling=case.finals,
            draft_lens=case.lens,
        ),
    }  # fmt: skip
    accepted, bonus = calls[rule]()
    return accepted.tolist(), bonus.tolist()
