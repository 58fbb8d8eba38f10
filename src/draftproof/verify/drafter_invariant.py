"""Drafter-invariant sampling: noise fixed by (seed, position, token) makes the choice, the drafter only guesses it.

At output position i the target's choice is the argmax over surviving tokens of ``logit / T + g(seed, i, token)``,
an exact sample of the target distribution (the Gumbel-max trick) that no draft can influence. A draft token is kept
while it equals the choice, so the text of a seed is the same with any drafter or none. Source: Daliri, Musco, Suresh
2024, "Coupling without communication and drafter-invariant speculative decoding".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.verify import contract, kernels
from draftproof.verify.distribution import first_argmax, truncate
from draftproof.verify.greedy import verify_greedy
from draftproof.verify.gumbel import as_int64, gumbel_rows
from draftproof.verify.sampling_info import TOP_K_ALL, Filters, SamplingInfo, SamplingInfoLike
from draftproof.verify.walk import Level, walk


def verify_drafter_invariant(
    *,
    candidates: torch.Tensor,
    next_token_logits: torch.Tensor,
    sampling_info: SamplingInfoLike,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    draft_lens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept while the draft equals the target's own choice; the bonus is the choice of row `accepted`.

    What is chosen at a row depends on that row, its settings, seed and position alone, bit for bit: not on the
    number of candidates, the other sequences, their order, or the number of threads.

    Args:
        candidates: int ``[bs, n]``; column 0 the anchor, then the draft tokens. ``n = 1`` samples without drafts.
        next_token_logits: float ``[bs * n, vocab]``, penalised and masked; row ``b * n + t`` predicts the token
            after ``candidates[b, t]``. Rows past a sequence's first disagreement may hold anything.
        sampling_info: settings, one entry a sequence (see `SamplingInfo`).
        seeds: int ``[bs]``, any 64-bit values.
        positions: int ``[bs]``, output index of the choice made at row 0 of each sequence, >= 0.
        draft_lens: int ``[bs]`` in [0, n - 1], draft tokens of each sequence; later columns are ignored. All by
            default.

    Returns:
        accepted int32 ``[bs]``, bonus int64 ``[bs]``.

    Raises:
        ContractError: a precondition does not hold (codes DP1xx, in the order of `draftproof.verify.contract`).
    """
    bs, n = contract.check_layout(candidates, next_token_logits)
    device, vocab = next_token_logits.device, next_token_logits.shape[1]
    contract.check_integer(candidates, "candidates")
    contract.check_logit_dtype(next_token_logits)
    filters = contract.resolve_filters(sampling_info, bs, device)
    seeds = contract.check_per_request(seeds, "seeds", bs, device)
    positions = contract.check_per_request(positions, "positions", bs, device)
    lens = contract.resolve_draft_lens(draft_lens, bs, n, device)
    candidates = as_int64(candidates)
    contract.check_tokens(candidates, vocab, None if draft_lens is None else lens)
    contract.check_positions(positions)
    seeds, positions = as_int64(seeds), as_int64(positions)
    if kernels.available(next_token_logits):
        outcomes = kernels.drafter_invariant(candidates, lens, next_token_logits, filters, seeds, positions)
        contract.raise_first_fault(outcomes, n)
        return kernels.pack(outcomes)

    def step(level: Level) -> tuple[torch.Tensor, torch.Tensor]:
        contract.check_rows(next_token_logits, level.rows[level.walking])
        choice = choose(
            next_token_logits.index_select(0, level.rows),
            filters.take(level.sequences),
            seeds[level.sequences],
            positions[level.sequences] + level.index,
        )
        return choice == level.drafts, choice

    return walk(candidates, lens, step)


def sample_checked(
    *,
    candidates: Sequence[Sequence[int]],
    next_token_logits: torch.Tensor,
    temperature: Sequence[float],
    top_k: Sequence[int],
    top_p: Sequence[float],
    min_p: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> list[tuple[int, int]]:
    """`verify_drafter_invariant` for an engine, which has checked its numbers long before: what is checked here is the rows.

    Args:
        candidates: token ids of each sequence, equally many; the anchor first.
        next_token_logits: see `verify_drafter_invariant`.
        temperature, top_k, top_p, min_p: in range, one a sequence; ``top_k <= 0`` keeps all tokens; no temperature is 0.
        seeds: 64-bit integers, one a sequence.
        positions: output index of each sequence's first choice.

    Returns:
        For each sequence (draft tokens kept, bonus).

    Raises:
        ContractError: DP105, and DP121 to DP123 for a row that was read.
    """
    n = len(candidates[0])
    if next_token_logits.shape[0] == len(candidates) * n and kernels.available(next_token_logits):
        top_ks = [k if 0 < k < TOP_K_ALL else TOP_K_ALL for k in top_k]
        settings = (temperature, top_ks, top_p, min_p)
        outcomes = kernels.drafter_invariant_on_numbers(
            candidates, next_token_logits, settings, seeds, positions
        )
        contract.raise_first_fault(outcomes, n)
        return [(accepted, int(bonus)) for _, _, accepted, bonus in outcomes]
    device = next_token_logits.device
    kept, bonuses = verify_drafter_invariant(
        candidates=torch.tensor(candidates, device=device),
        next_token_logits=next_token_logits,
        sampling_info=SamplingInfo.of(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, device=device
        ),
        seeds=torch.tensor(seeds, device=device),
        positions=torch.tensor(positions, device=device),
    )
    return list(zip(kept.tolist(), bonuses.tolist(), strict=True))


def gumbel_choice(
    *,
    logits: torch.Tensor,
    sampling_info: SamplingInfoLike,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """The drafter-invariant choice of free-standing rows: what `verify_drafter_invariant` would choose at each.

    A drafter that calls it on its own logits, with the request's seed and the position of the token it guesses,
    agrees with the target with probability >= (1 - d) / (1 + d) at total-variation distance d.

    Args:
        logits: float ``[rows, vocab]``.
        sampling_info: settings, one entry a row.
        seeds: int ``[rows]``, any 64-bit values.
        positions: int ``[rows]``, output index of each choice, >= 0.

    Returns:
        int64 ``[rows]``.

    Raises:
        ContractError: a precondition does not hold (codes DP1xx).
    """
    contract.check_logits(logits, "logits")
    rows, device = logits.shape[0], logits.device
    filters = contract.resolve_filters(sampling_info, rows, device)
    seeds = contract.check_per_request(seeds, "seeds", rows, device)
    positions = contract.check_per_request(positions, "positions", rows, device)
    contract.check_positions(positions)
    seeds, positions = as_int64(seeds), as_int64(positions)
    if kernels.available(logits):
        anchors = torch.zeros((rows, 1), dtype=torch.int64)
        outcomes = kernels.drafter_invariant(anchors, anchors[:, 0], logits, filters, seeds, positions)
        contract.raise_first_fault(outcomes, 1, "logits")
        return kernels.pack(outcomes)[1]
    contract.check_rows(logits, torch.arange(rows, device=device), "logits")
    return choose(logits, filters, seeds, positions)


def choose(
    logits: torch.Tensor, filters: Filters, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """The choice of each row in plain PyTorch, without checks: argmax over survivors of score + noise."""
    rows = truncate(logits, filters)
    noise = gumbel_rows(seeds, positions, logits.shape[1])
    return first_argmax(torch.where(rows.keep, rows.scores + noise, -torch.inf))


def warm_up(dtype: torch.dtype = torch.float32) -> None:
    """Make the first real call as fast as any other, by compiling the kernels (or loading them from numba's cache).

    Takes some 15 seconds the first time on a machine, half a second later on, nothing where kernels do not run.
    """
    one = torch.zeros(1, dtype=torch.int64)
    logits = torch.zeros((1, 2), dtype=dtype)
    gumbel_choice(logits=logits, sampling_info=SamplingInfo.of(), seeds=one, positions=one)
    verify_greedy(next_token_logits=logits, first_rows=[0], drafts=[[]])
