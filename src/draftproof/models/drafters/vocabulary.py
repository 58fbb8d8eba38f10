"""The tokens a drafter proposes, where its checkpoint names some of the target's only.

Half of a small drafter's pass is the LM head over the whole vocabulary. One that was trained on texts in which a quarter of the
tokens occur has learned nothing about the others, so its head may as well leave them out (Zhao et al. 2025, "FR-Spec:
Accelerating large-vocabulary language models via frequency-ranked speculative sampling"). A token that is left out is never
drafted, only ever written by the target itself.

A checkpoint says so in a file of its own beside its weights, which other loaders do not look for: for them it is an ordinary
drafter.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import torch

from draftproof.errors import DrafterError

FILE = "draft_vocabulary.json"


def read_vocabulary(folder: Path, vocab_size: int) -> torch.Tensor | None:
    """The token ids that a checkpoint proposes, ascending, int64 ``[n]``; None where it does not say.

    Args:
        folder: of the checkpoint.
        vocab_size: of the target.

    Raises:
        DrafterError: DP319, the file says something else than ascending token ids of the target.
    """
    path = folder / FILE
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))["token_ids"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DrafterError(
            "DP319", f'{path} must be {{"token_ids": [...]}}: {type(error).__name__}: {error}'
        ) from error
    if not isinstance(ids, list) or not ids:
        raise DrafterError("DP319", f"{path}: token_ids must be a list with at least one token id")
    if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
        raise DrafterError("DP319", f"{path}: token_ids must hold whole numbers")
    if not 0 <= ids[0] <= ids[-1] < vocab_size or any(a >= b for a, b in pairwise(ids)):
        raise DrafterError(
            "DP319",
            f"{path}: token_ids must ascend and lie in 0 to {vocab_size - 1}, the target's vocabulary",
        )
    return torch.tensor(ids, dtype=torch.int64)


def vocabulary_text(token_ids: list[int]) -> str:
    """What the file says for these tokens."""
    return json.dumps({"token_ids": sorted(token_ids)}) + "\n"


def spread(logits: torch.Tensor, vocabulary: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Logits of some tokens ``[rows, n]`` among those of all ``[rows, vocab_size]``, where the others never come (-inf)."""
    whole = torch.full((logits.shape[0], vocab_size), -torch.inf, dtype=logits.dtype, device=logits.device)
    whole[:, vocabulary] = logits
    return whole
