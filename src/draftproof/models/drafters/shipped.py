"""Drafters that come with the package: ``drafter="default"``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from draftproof.errors import DrafterError

FOLDER = Path(__file__).parents[2] / "drafters"
"""Where the package keeps them, a folder each."""


@dataclass(frozen=True)
class ShippedDrafter:
    """A drafter that comes with the package.

    Attributes:
        target: the known name of the model it was trained for.
        folder: its folder's name.
        hub_id: under which the same weights are published, in lower case; None where they are not.
    """

    target: str
    folder: str
    hub_id: str | None = None

    def is_for(self, target: str) -> bool:
        """Whether a target's name, as the user gave it, is this model's known name or hub id; the case does not matter."""
        return target.strip().lower() in (self.target, self.hub_id)

    def looks_right_for(self, target: str) -> bool:
        """Whether it at least ends like the hub id: a folder, a copy on the hub, a GGUF file of any quantisation.

        What lies there may be another model, so this serves those only who ask for the default drafter.
        """
        last = PureWindowsPath(target.strip().lower()).name  # which takes both kinds of slashes
        return self.hub_id is not None and _QUANTISED.sub("", last) == self.hub_id.rpartition("/")[2]


SHIPPED: tuple[ShippedDrafter, ...] = (
    ShippedDrafter(
        target="smollm2-135m", folder="smollm2-135m", hub_id="huggingfacetb/smollm2-135m-instruct"
    ),
)
_QUANTISED = re.compile(r"([.-](i?q\d\w*|bf16|f16|f32))?\.gguf$")


def has_default(target: str) -> bool:
    """Whether a drafter comes with the package for the target of this known name or hub id, and is there."""
    return any(entry.is_for(target) and (FOLDER / entry.folder).is_dir() for entry in SHIPPED)


def default_drafter(target: str, table: tuple[ShippedDrafter, ...] = SHIPPED, root: Path = FOLDER) -> Path:
    """The folder of the drafter that comes with the package for a target.

    Args:
        target: the target's name as the user gave it: a known name, a hub id or a path.
        table, root: which drafters there are, and where.

    Raises:
        DrafterError: DP548, none comes for this target; DP549, it should, but is not there.
    """
    for entry in table:
        if entry.is_for(target) or entry.looks_right_for(target):
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
