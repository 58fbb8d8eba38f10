"""How a drafter chooses tokens: as the target would choose from the same scores.

Above temperature 0 it uses the target's own Gumbel noise for the same seed, output position and token, so
that the two choices agree whenever their distributions are close (Daliri, Musco, Suresh 2024, "Coupling
without communication and drafter-invariant speculative decoding").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.models.drafters.base import DraftSampling
from draftproof.verify import SamplingInfo, gumbel_choice, gumbel_noise

_ROWS = 8
"""Rows of the vocabulary worked on at once: few enough to stay in a CPU's cache from one operator to the next."""

_STRETCH = 256
"""Neighbouring tokens whose maximum is found together."""


@dataclass(frozen=True)
class Draw:
    """How the `count` consecutive rows of one sequence choose; the first stands at `output_position`."""

    sampling: DraftSampling
    output_position: int
    count: int

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature <= 0


def choose_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The choice of each row of ``logits [rows, vocab]``, int64 ``[rows]``; the rows are those of `draws` in turn."""
    greedy = [draw.is_greedy for draw in draws for _ in range(draw.count)]
    if all(greedy):
        return _best(logits)
    sampled = [draw for draw in draws if not draw.is_greedy]
    if not any(greedy):
        return _sample(logits, sampled)
    is_greedy = torch.tensor(greedy, device=logits.device)
    tokens = torch.empty(len(greedy), dtype=torch.int64, device=logits.device)
    tokens[is_greedy] = _best(logits[is_greedy])
    tokens[~is_greedy] = _sample(logits[~is_greedy], sampled)
    return tokens


def _best(logits: torch.Tensor) -> torch.Tensor:
    """The first maximum of each row, int64 ``[rows]``.

    First the stretch of tokens that holds it, then the token within: a CPU finds maxima of stretches in a fraction of the time
    it takes to find where one lies. In float32, which is faster than bfloat16 for both.
    """
    return torch.cat([_best_of(part) for part in logits.split(_ROWS)])


def _best_of(logits: torch.Tensor) -> torch.Tensor:
    rows, vocab = logits.shape
    stretches = -(-vocab // _STRETCH)
    scores = torch.full((rows, stretches * _STRETCH), -torch.inf, device=logits.device)
    scores[:, :vocab] = logits
    scores = scores.view(rows, stretches, _STRETCH)
    stretch = scores.amax(-1).argmax(-1, keepdim=True)
    within = scores.gather(1, stretch[..., None].expand(-1, -1, _STRETCH)).squeeze(1).argmax(-1)
    return stretch.squeeze(-1) * _STRETCH + within


def _sample(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    rows = [draw.sampling for draw in draws for _ in range(draw.count)]
    info = SamplingInfo.of(
        temperature=[row.temperature for row in rows],
        top_k=[row.top_k for row in rows],
        top_p=[row.top_p for row in rows],
        min_p=[row.min_p for row in rows],
        device=logits.device,
    )
    seeds, positions = _seeds_and_positions(draws, logits.device)
    return gumbel_choice(logits=logits, sampling_info=info, seeds=seeds, positions=positions)


def candidate_noise(candidates: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Gumbel noise of candidate tokens: int64 ``[rows, c]`` to float64 ``[rows, c]``; zero at temperature 0."""
    if all(draw.is_greedy for draw in draws):
        return torch.zeros(candidates.shape, dtype=torch.float64, device=candidates.device)
    seeds, positions = _seeds_and_positions(draws, candidates.device)
    noise = gumbel_noise(seeds[:, None], positions[:, None], candidates)
    greedy = [draw.is_greedy for draw in draws for _ in range(draw.count)]
    return noise.masked_fill(torch.tensor(greedy, dtype=torch.bool, device=candidates.device)[:, None], 0.0)


def temperatures(draws: Sequence[Draw], device: torch.device) -> torch.Tensor:
    """What the scores of each row are divided by, float64 ``[rows]``; 1 for greedy rows."""
    values = [
        1.0 if draw.is_greedy else draw.sampling.temperature for draw in draws for _ in range(draw.count)
    ]
    return torch.tensor(values, dtype=torch.float64, device=device)


def _seeds_and_positions(draws: Sequence[Draw], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Per row, int64. A seed from the whole 64-bit range becomes the int64 with the same bits."""
    seeds = [(draw.sampling.seed + 2**63) % 2**64 - 2**63 for draw in draws for _ in range(draw.count)]
    positions = [draw.output_position + row for draw in draws for row in range(draw.count)]
    return (
        torch.tensor(seeds, dtype=torch.int64, device=device),
        torch.tensor(positions, dtype=torch.int64, device=device),
    )


def probability(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Probability of ``tokens [rows]`` under the softmax of ``logits [rows, vocab]`` at temperature 1, float32 ``[rows]``."""
    return torch.cat(
        [
            torch.softmax(part, -1, dtype=torch.float32).gather(-1, chosen[:, None]).squeeze(-1)
            for part, chosen in zip(logits.split(_ROWS), tokens.split(_ROWS), strict=True)
        ]
    )
