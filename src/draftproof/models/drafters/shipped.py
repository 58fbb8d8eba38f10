"""Drafters that come with the package: ``drafter="default"``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftproof.errors import DrafterError

FOLDER = Path(__file__).parents[2] / "drafters"
"""Where the package keeps them, a folder each."""


@dataclass(frozen=True)
class ShippedDrafter:
    """A drafter that comes with the package.

    Attributes:
        target: the known name of the model it was trained for.
        folder: its folder's name.
    """

    target: str
    folder: str


SHIPPED: tuple[ShippedDrafter, ...] = (ShippedDrafter(target="smollm2-135m", folder="smollm2-135m"),)


def has_default(target: str) -> bool:
    """Whether a drafter comes with the package for a target of this name, and is there."""
    wanted = target.strip().lower()
    return any(entry.target == wanted and (FOLDER / entry.folder).is_dir() for entry in SHIPPED)


def default_drafter(target: str, table: tuple[ShippedDrafter, ...] = SHIPPED, root: Path = FOLDER) -> Path:
    """The folder of the drafter that comes with the package for a target.

    Args:
        target: the target's name as the user gave it; the case does not matter.
        table, root: which drafters there are, and where.

    Raises:
        DrafterError: DP548, none comes for this target; DP549, it should, but is not there.
    """
    wanted = target.strip().lower()
    for entry in table:
        if entry.target == wanted:
            return _checked(entry, root)
    names = ", ".join(entry.target for entry in table)
    raise DrafterError(
        "DP548",
        f"no drafter comes with draftproof for {target!r}; there is one for {names}. Name a checkpoint, "
        "'ngram', or train one: draftproof train",
    )


def _checked(entry: ShippedDrafter, root: Path) -> Path:
    folder = root / entry.folder
    missing = [name for name in ("config.json", "model.safetensors") if not (folder / name).is_file()]
    if missing:
        raise DrafterError(
            "DP549",
            f"the drafter for {entry.target} is not whole in this installation: {folder} lacks {' and '.join(missing)}; "
            "install draftproof again",
        )
    return folder
