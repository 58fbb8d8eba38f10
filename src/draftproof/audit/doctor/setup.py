"""One way of putting target and drafter together, as data; and the drafter it makes, from a folder that only lives for that."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from draftproof.errors import DrafterError
from draftproof.models.drafters import Drafter, TargetInfo, load_drafter
from draftproof.models.drafters.weights import read_tensors

Order = Literal["as stored", "pairs to halves", "halves to pairs"]


@dataclass(frozen=True)
class Setup:
    """How a pair is put together.

    Attributes:
        config: the drafter's ``config.json``.
        order: of the channels of q and k, in rows and in biases.
        gains: whether the gains of the q and k norms are put in that order too.
        block_size: None for the config's own.
        style: how prompts are put to the target, one of `texts.styles_of`.
        precision: of the target, one of ``models.loading.DTYPES``.
    """

    config: Mapping[str, Any]
    style: str
    precision: str
    order: Order = "as stored"
    gains: bool = True
    block_size: int | None = None

    def field(self, name: str) -> Any:
        """A field of the config, wherever it stands; None where it does not. ``dflash_config`` wins."""
        own = self._own.get(name)
        return self.config.get(name) if own is None else own

    @property
    def _own(self) -> Mapping[str, Any]:
        own = self.config.get("dflash_config")
        return own if isinstance(own, Mapping) else {}

    def with_own(self, name: str, value: object) -> Setup:
        """The same with another value in ``dflash_config``."""
        return replace(self, config={**self.config, "dflash_config": {**self._own, name: value}})

    def with_rope(self, theta: float, scaling: Mapping[str, Any] | None = None) -> Setup:
        """The same with another RoPE base; `scaling` replaces the settings beside it, None leaves them."""
        config = dict(self.config)
        parts = [config.pop(name, None) or {} for name in ("rope_scaling", "rope_parameters")]
        own = (
            {key: value for part in parts for key, value in part.items()}
            if scaling is None
            else dict(scaling)
        )
        own.pop("rope_theta", None)
        config["rope_theta"] = theta
        if own:
            config["rope_parameters"] = own
        return replace(self, config=config)

    def with_top(self, name: str, value: object) -> Setup:
        """The same with another value at the top level."""
        return replace(self, config={**self.config, name: value})


def read_setup(folder: Path, style: str, precision: str) -> Setup:
    """A checkpoint as it stands. What is wrong with the file shows when it is loaded."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    return Setup(config if isinstance(config, dict) else {}, style, precision)


def load_setup(folder: Path, setup: Setup, target: TargetInfo) -> Drafter:
    """The drafter that a setup makes of a checkpoint, through the same reading and checks as any other.

    The user's folder is only read: a temporary one gets the config and links to the weights, or weights in another order.

    Raises:
        DrafterError: DP3xx, it cannot be read or does not fit.
    """
    with tempfile.TemporaryDirectory(prefix="draftproof-doctor-") as name:
        made = Path(name)
        (made / "config.json").write_text(json.dumps(dict(setup.config)), encoding="utf-8")
        if setup.order == "as stored":
            _link_weights(folder, made)
        else:
            save_file(_reordered(read_tensors(folder), setup), made / "model.safetensors")
        try:
            return load_drafter(made, target, setup.block_size)
        except DrafterError as error:  # the user knows nothing of the temporary folder
            raise DrafterError(error.code, error.message.replace(str(made), str(folder))) from None


def _link_weights(source: Path, made: Path) -> None:
    for file in source.iterdir():
        if file.name == "config.json" or not file.is_file():
            continue
        try:
            os.symlink(file.resolve(), made / file.name)
        except OSError:  # not every system lets everybody link
            shutil.copyfile(file, made / file.name)


def _reordered(tensors: Mapping[str, torch.Tensor], setup: Setup) -> dict[str, torch.Tensor]:
    """The weights with the channels of q and k in another order, head by head.

    Rotation here pairs channel i with ``i + head_dim / 2`` (halves). Other code pairs 2i with 2i + 1 (RoFormer, section 3.4.2);
    moving all even channels before the odd ones turns the second into the first.
    """
    dim = int(setup.field("head_dim") or setup.field("hidden_size") // setup.field("num_attention_heads"))
    channels = torch.arange(dim)
    order = torch.cat((channels[0::2], channels[1::2]))
    if setup.order == "halves to pairs":
        order = order.argsort()
    changed = dict(tensors)
    for name, tensor in tensors.items():
        _, _, part = name.rpartition("self_attn.")
        if part in ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"):
            changed[name] = tensor.unflatten(0, (-1, dim))[:, order].flatten(0, 1).contiguous()
        elif setup.gains and part in ("q_norm.weight", "k_norm.weight"):
            changed[name] = tensor[order].contiguous()
    return changed
