"""A checkpoint's tensors, read one at a time.

Every look at a tensor maps its stretch of the file anew and the mapping goes with the tensor, so memory holds what is in use
and no more: a tensor that has been packed and let go leaves nothing behind, and of one that is kept (the embedding) only the
rows that were looked at are in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from draftproof.errors import ModelError

_KINDS: dict[str, tuple[type[np.generic], torch.dtype]] = {
    "F32": (np.float32, torch.float32),
    "F16": (np.float16, torch.float16),
    "BF16": (np.int16, torch.bfloat16),
}
"""What numpy reads, and what torch then takes it for. Other dtypes (FP8, integers) are no plain weights."""
_OTHER_SIZES = {"F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies."""

    file: Path
    offset: int
    kind: str
    shape: tuple[int, ...]


class CheckpointTensors(Mapping[str, torch.Tensor]):
    """The tensors of a folder's safetensors files by name, on the CPU, in the dtype they are stored in.

    They can be written to (a copy is then made of the pages that are), the files stay as they are.

    Args:
        folder: with ``model.safetensors``, or shards and ``model.safetensors.index.json``.
        name: how messages call the model.

    Raises:
        ModelError: DP250, a file cannot be read, or is not what it should be.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._places: dict[str, _Place] = {}
        for file in safetensors_files(folder):
            try:
                self._places.update(_places_in(file))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._unreadable(file, error) from error

    def __getitem__(self, key: str) -> torch.Tensor:
        place = self._places[key]
        if place.kind not in _KINDS:
            raise ModelError("DP250", f"cannot load {self._name}: {key} is stored as {place.kind}")
        stored, kind = _KINDS[place.kind]
        if 0 in place.shape:
            return torch.empty(place.shape, dtype=kind)
        try:
            mapped = np.memmap(place.file, stored, "c", place.offset, place.shape or (1,))
        except (OSError, ValueError) as error:
            raise self._unreadable(place.file, error) from error
        tensor = torch.from_numpy(mapped).view(kind)
        return tensor if place.shape else tensor[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape, without a look at its numbers."""
        return self._places[key].shape

    @property
    def plain(self) -> bool:
        """Whether all tensors are stored in a floating dtype of 16 or 32 bits."""
        return all(place.kind in _KINDS for place in self._places.values())

    @property
    def parameters(self) -> int:
        """Numbers in all tensors; what is shared counts once, as it is stored."""
        return sum(int(np.prod(place.shape)) for place in self._places.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(_bytes(place.kind, place.shape) for place in self._places.values())

    def _unreadable(self, file: Path, error: Exception) -> ModelError:
        return ModelError("DP250", f"cannot load {self._name}: {file.name}: {type(error).__name__}: {error}")


def safetensors_files(folder: Path) -> list[Path]:
    """The safetensors files that Transformers would read; none where the weights are stored otherwise."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [folder / name for name in sorted(names)]


def _places_in(file: Path) -> dict[str, _Place]:
    """The header of a safetensors file: its length in 8 bytes, little-endian; JSON; the tensors back to back."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > size - 8:
            raise ValueError(f"{size} bytes hold no whole header")
        header = json.loads(stream.read(length))
    places = {}
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        shape = tuple(int(extent) for extent in entry["shape"])
        known = entry["dtype"] in _KINDS or entry["dtype"] in _OTHER_SIZES
        if 8 + length + end > size or (known and end - first != _bytes(entry["dtype"], shape)):
            raise ValueError(f"{key} is cut short or damaged")
        places[key] = _Place(file, 8 + length + first, entry["dtype"], shape)
    return places


def _bytes(kind: str, shape: tuple[int, ...]) -> int:
    each = np.dtype(_KINDS[kind][0]).itemsize if kind in _KINDS else _OTHER_SIZES.get(kind, 1)
    return int(np.prod(shape, dtype=np.int64)) * each
