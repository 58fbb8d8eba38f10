"""Is this folder a whole model? Read from names, sizes and headers alone; no weight is loaded."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

from draftproof.errors import ModelError

_MAX_HEADER = 100_000_000
"""Upper bound on a safetensors header, bytes; the format's own readers refuse longer ones."""


def check_model_folder(folder: Path) -> None:
    """Check that `folder` holds a readable ``config.json`` and all of its weights, none cut short.

    Raises:
        ModelError: DP201 no such folder; DP202 no usable ``config.json``; DP203 weights or a shard missing;
            DP204 a weights file is truncated or damaged.
    """
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise ModelError("DP201", f"model folder {what}: {folder}")
    check_config(folder)
    for file in weight_files(folder):
        check_weight_file(file)


def check_config(folder: Path) -> None:
    """Check that ``config.json`` is there and holds a JSON object.

    Raises:
        ModelError: DP202.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError("DP202", f"no config.json in the model folder {folder}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError("DP202", f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError("DP202", f"{path} must hold a JSON object, got {type(config).__name__}")


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a model folder, in the order in which Transformers looks for them.

    Raises:
        ModelError: DP203 when there are none, or when an index names a file that is not there; DP204 when
            an index cannot be read.
    """
    for single, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            return _shards(folder / index)
    found = sorted(p.name for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".gguf", ".pt"))
    hint = f" (found {', '.join(found[:4])}, but no index that names them)" if found else ""
    raise ModelError(
        "DP203",
        f"no weights in {folder}: expected model.safetensors or model.safetensors.index.json{hint}",
    )


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError("DP204", f"{index} is no readable weight index: {error!r}") from error
    files = [index.parent / name for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise ModelError(
            "DP203",
            f"{len(missing)} of {len(files)} shards named by {index} are missing: {', '.join(missing[:4])}",
        )
    return files


def check_weight_file(file: Path) -> None:
    """Check one weights file against its own header.

    Raises:
        ModelError: DP204 when its size and its header disagree.
    """
    if file.suffix == ".safetensors":
        _check_safetensors(file)
    elif not zipfile.is_zipfile(file):
        # torch.save writes a zip archive, whose directory lies at the end: a cut file has none.
        raise ModelError("DP204", f"{file} is truncated or damaged: it has no archive directory at its end")


def _check_safetensors(file: Path) -> None:
    """Format: 8 bytes little-endian header length, that many bytes of JSON, then the tensors back to back."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise ModelError("DP204", f"{file} is truncated or damaged: {size} bytes hold no whole header")
        raw = stream.read(length)
    try:
        header = json.loads(raw)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelError("DP204", f"{file} is damaged: its header is not readable ({error!r})") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ModelError("DP204", f"{file} is truncated or damaged: expected {expected} bytes, got {size}")
