"""The drafter that a run trains, put together: its shape, its first weights, and the vocabulary of its loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from draftproof.errors import RequestError
from draftproof.models.drafters.vocabulary import FILE, vocabulary_text
from draftproof.train.features import Sample
from draftproof.train.initial import initial_tensors
from draftproof.train.layout import DrafterShape, shape_for
from draftproof.train.loss import ReducedVocabulary
from draftproof.train.model import TrainableDrafter
from draftproof.train.settings import TrainSettings
from draftproof.train.start import insist_continues
from draftproof.train.target_weights import read_target_weights

MOST = 0.8
"""A list of draft tokens is worth while up to this share of the vocabulary."""
SAMPLES = 8
"""On whose features the sizes of the target's queries and keys are measured."""


@dataclass(frozen=True)
class Trainee:
    """What is trained.

    Attributes:
        drafter: the model, with its first weights.
        shape: what its config says.
        vocabulary: over which the loss's softmax runs; None for all.
        files: what lies beside its weights, by name.
    """

    drafter: TrainableDrafter
    shape: DrafterShape
    vocabulary: ReducedVocabulary | None
    files: Mapping[str, str]


def make_trainee(
    target: str,
    settings: TrainSettings,
    taps: tuple[int, ...],
    mask_token_id: int,
    answered: Mapping[int, int],
    samples: Sequence[Sample],
    start_from: Path | None = None,
) -> Trainee:
    """The drafter as the training finds it; the same for the same arguments.

    Args:
        target: as `LLM` takes it.
        settings: the recipe.
        taps: target layers.
        mask_token_id: what fills the slots to be guessed.
        answered: how often answers hold a token, by its id.
        samples: a few, for `initial_tensors`.
        start_from: a drafter's folder, whose weights are taken instead.

    Raises:
        ModelError: DP510, the target has nothing to lend.
        DrafterError: DP511, the shape does not fit, or is not that of `start_from`; DP301 to DP308, nor do its weights.
        RequestError: DP523, `start_from` cannot be read.
    """
    weights = read_target_weights(target, settings.num_layers if settings.from_target else 0)
    shape = shape_for(
        weights,
        num_layers=settings.num_layers,
        block_size=settings.block_size,
        mask_token_id=mask_token_id,
        taps=taps,
    )
    config = shape.config()
    if start_from is not None:
        insist_continues(start_from, vars(config))
        config = replace(config, source=str(start_from))
    drafter = TrainableDrafter(config, weights.embedding, weights.lm_head)
    if start_from is not None:
        try:
            first = load_file(start_from / "model.safetensors")
        except (OSError, SafetensorError) as error:
            raise RequestError("DP523", f"{start_from} cannot be read: {error}") from error
    else:
        first = initial_tensors(shape, weights, samples, settings.seed)
        if not settings.from_target:
            first["fc.weight"] = _random(first["fc.weight"], settings.seed)
    drafter.load_published(first)
    reduced = ReducedVocabulary(sorted(answered), shape.vocab_size) if settings.reduced_vocabulary else None
    return Trainee(drafter, shape, reduced, _files(answered, settings.draft_vocabulary, shape.vocab_size))


def _files(answered: Mapping[int, int], share: float, vocab_size: int) -> dict[str, str]:
    common = commonest(answered, share)
    # Where little is left out, there is little to be gained.
    return {FILE: vocabulary_text(common)} if share < 1.0 and len(common) <= MOST * vocab_size else {}


def commonest(counts: Mapping[int, int], share: float) -> list[int]:
    """The fewest token ids, ascending, that make up at least a share of all counts; the lower id where two count alike."""
    wanted, found = share * sum(counts.values()), list[int]()
    for token in sorted(counts, key=lambda token: (-counts[token], token)):
        if wanted <= 0:
            break
        found.append(token)
        wanted -= counts[token]
    return sorted(found)


def _random(like: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator) * like.shape[1] ** -0.5
