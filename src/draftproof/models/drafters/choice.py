"""How a drafter chooses tokens: as the target would choose from the same scores.

Above temperature 0 it uses the target's own Gumbel noise for the same seed, output position and token, so
that the two choices agree whenever their distributions are close (Daliri, Musco, Suresh 2024, "Coupling
without communication and drafter-invariant speculative decoding").
"""

from __future__ import annotations

import torch

from draftproof.models.drafters.base import DraftSampling
from draftproof.verify import SamplingInfo, gumbel_choice, gumbel_noise


def choose_tokens(logits: torch.Tensor, sampling: DraftSampling, output_position: int) -> torch.Tensor:
    """The choice of each row of ``logits [k, vocab]``, int64 ``[k]``; row 0 stands at `output_position`."""
    if sampling.temperature <= 0:
        # float32, since bfloat16's own argmax is several times slower on a CPU. The first maximum wins.
        return logits.float().argmax(-1)
    count, device = logits.shape[0], logits.device
    info = SamplingInfo.of(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        batch_size=count,
        device=device,
    )
    positions = torch.arange(output_position, output_position + count, device=device)
    seeds = _seeds(sampling.seed, count, device)
    return gumbel_choice(logits=logits, sampling_info=info, seeds=seeds, positions=positions)


def candidate_noise(candidates: torch.Tensor, sampling: DraftSampling, output_position: int) -> torch.Tensor:
    """Gumbel noise of candidate tokens: int64 ``[k, c]`` to float64 ``[k, c]``; zero at temperature 0.

    Row 0 stands at `output_position`.
    """
    if sampling.temperature <= 0:
        return torch.zeros(candidates.shape, dtype=torch.float64, device=candidates.device)
    slots, device = candidates.shape[0], candidates.device
    positions = torch.arange(output_position, output_position + slots, device=device)
    return gumbel_noise(_seeds(sampling.seed, 1, device), positions[:, None], candidates)


def _seeds(seed: int, count: int, device: torch.device) -> torch.Tensor:
    """A seed from the whole 64-bit range, as the int64 with the same bits."""
    signed = (seed + 2**63) % 2**64 - 2**63
    return torch.full((count,), signed, dtype=torch.int64, device=device)
