"""Training that goes on from a drafter which is there already: its shape is taken over, and has to be that of the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.errors import DrafterError
from draftproof.models.drafters.config import read_config

FREE = frozenset(("source", "block_size", "num_target_layers"))
"""What may differ: weights for blocks of one length can learn another, and not every checkpoint tells its target's depth."""


def settings_of(folder: Path) -> dict[str, Any]:
    """A drafter's shape, by the names of `TrainSettings`.

    Raises:
        DrafterError: DP301 to DP303, DP313, DP314, there is no config that can be read.
    """
    config = read_config(folder)
    return {
        "num_layers": config.num_layers,
        "block_size": config.block_size,
        "taps": config.target_layer_ids,
        "mask_token_id": config.mask_token_id,
    }


def insist_continues(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse to train a drafter on as something that it is not: it would run, and unlearn first what it was for.

    Args:
        folder: of the drafter whose weights are taken.
        wanted: of the drafter that is trained, fields of `DrafterConfig` by name.

    Raises:
        DrafterError: DP511, with everything that differs; DP301 to DP303, DP313, DP314, the folder's config cannot be read.
    """
    there = read_config(folder)
    differing = [
        f"{name} {getattr(there, name)}, not {value}"
        for name, value in wanted.items()
        if name not in FREE and getattr(there, name) != value
    ]
    if differing:
        raise DrafterError(
            "DP511",
            f"the run cannot start from {folder}, which was trained with {'; '.join(differing)}: give the same, or leave it out",
        )


def card_before(folder: Path) -> str | None:
    """What a drafter's card says of its data and recipe, its headings one level down; None without such a card."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(r"^## Data$.*", text, re.MULTILINE | re.DOTALL)
    return None if found is None else re.sub(r"^(?=#+ )", "#", found[0], flags=re.MULTILINE).rstrip()
