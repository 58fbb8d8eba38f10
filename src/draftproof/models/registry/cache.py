"""The folder where converted models lie: where it is, how a model enters it, how one is checked.

Layout below `cache_root()`: ``models/<name>-<source>-<conversion>/`` whole models only; ``downloads/``
partial downloads; ``locks/``. A model folder appears by one rename of a finished, flushed sibling, so a
folder under its final name is always whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from draftproof.errors import ModelError
from draftproof.models.registry.known import KNOWN_MODELS, KnownModel
from draftproof.models.registry.progress import Progress

MANIFEST = "draftproof.json"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """One file of a cached model: bytes and sha256, as written."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What lies in a cached model's folder, by file name."""

    name: str
    source_sha256: str
    conversion: int
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class CachedModel:
    """One known model and its copy in the cache; `bytes` is 0 when it has not been fetched."""

    entry: KnownModel
    path: Path
    cached: bool
    bytes: int


def cache_root() -> Path:
    """The cache folder: ``$DRAFTPROOF_CACHE``, else the platform's cache folder of the user."""
    override = os.environ.get("DRAFTPROOF_CACHE")
    if override:
        return Path(override).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("draftproof", appauthor=False))


def model_path(entry: KnownModel) -> Path:
    """Where the converted model lies, or would lie."""
    return cache_root() / "models" / entry.cache_key


@contextmanager
def cache_errors(doing: str) -> Iterator[None]:
    """Turn what the operating system says about the cache folder into DP211."""
    try:
        yield
    except OSError as error:
        raise cache_error(doing, error) from error


def cache_error(doing: str, error: OSError) -> ModelError:
    """DP211 in words that fit the cause."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "free some space" if full else "check that the folder may be written to"
    return ModelError(
        "DP211",
        f"{doing} failed in the cache folder {cache_root()}: {reason}; {remedy}, or set DRAFTPROOF_CACHE",
    )


def require_space(needed: int) -> None:
    """Refuse before the work starts when the disk is too full for it.

    Raises:
        ModelError: DP211.
    """
    root = cache_root()
    free = shutil.disk_usage(root).free
    if free < needed:
        raise ModelError(
            "DP211",
            f"the cache folder {root} has {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB are needed; "
            "free some space, or set DRAFTPROOF_CACHE",
        )


@contextmanager
def locked(name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of one model. The system drops it when the process dies, however it dies."""
    from filelock import FileLock, Timeout

    with cache_errors("locking"):
        folder = cache_root() / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"waiting for another process that is fetching {name} ...")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def build_folder(entry: KnownModel) -> Iterator[Path]:
    """A fresh folder to build a model in; on a clean exit it becomes the model's folder in one rename.

    The caller holds the lock, so whatever another build left behind belongs to a dead process and goes first.
    """
    final = model_path(entry)
    with cache_errors("preparing"):
        final.parent.mkdir(parents=True, exist_ok=True)
        for stale in final.parent.glob(f".{entry.cache_key}.*"):
            shutil.rmtree(stale, ignore_errors=True)
        building = final.parent / f".{entry.cache_key}.{os.getpid()}"
        building.mkdir()
    try:
        yield building
        with cache_errors("storing"):
            _flush(building)
            os.replace(building, final)
            _sync(final.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _flush(folder: Path) -> None:
    """Bring a folder and its files to the disk, so that a power cut after the rename finds them whole."""
    for file in folder.iterdir():
        _sync(file)
    _sync(folder)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows has no way to open a folder for this.
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(file: Path) -> str:
    """Lower-case hex sha256 of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(folder: Path, entry: KnownModel) -> None:
    """Record the size and checksum of every file of a freshly built folder."""
    files = {
        file.name: FileRecord(file.stat().st_size, file_sha256(file))
        for file in sorted(folder.iterdir())
        if file.name != MANIFEST
    }
    manifest = Manifest(entry.name, entry.source.sha256, entry.conversion, files)
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a cached model.

    Raises:
        ModelError: DP212 when it is missing or not readable.
    """
    try:
        raw = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {name: FileRecord(**record) for name, record in raw["files"].items()}
        return Manifest(raw["name"], raw["source_sha256"], raw["conversion"], files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            "DP212",
            f"the cached model in {folder} has no readable {MANIFEST} ({error}); remove the folder, the next "
            "use fetches the model again",
        ) from error


def check_cached(entry: KnownModel) -> None:
    """The cheap check at every load: all files there, all sizes right.

    Raises:
        ModelError: DP212.
    """
    folder = model_path(entry)
    for name, record in read_manifest(folder).files.items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size != record.size:
            raise _damaged(
                entry, file, f"expected {record.size} bytes, got {'no file' if size is None else size}"
            )


def verify_cached(entry: KnownModel, progress: Progress) -> None:
    """The thorough check: every file read and its checksum compared.

    Raises:
        ModelError: DP212.
    """
    check_cached(entry)
    folder = model_path(entry)
    with progress.phase(f"checking the files of {entry.name}"):
        for name, record in read_manifest(folder).files.items():
            if file_sha256(folder / name) != record.sha256:
                raise _damaged(entry, folder / name, "its checksum differs from the one recorded")


def _damaged(entry: KnownModel, file: Path, what: str) -> ModelError:
    return ModelError(
        "DP212",
        f"the cached copy of {entry.name} is damaged, {file}: {what}; "
        f"run `draftproof models --remove {entry.name}`, the next use fetches it again",
    )


def list_cached(table: Sequence[KnownModel] = KNOWN_MODELS) -> list[CachedModel]:
    """Every known model with the state of its copy."""
    result = []
    for entry in table:
        path = model_path(entry)
        size = sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else 0
        result.append(CachedModel(entry, path, path.is_dir(), size))
    return result


def remove_cached(entry: KnownModel, progress: Progress) -> int:
    """Remove a model's copy, its partial downloads and earlier conversions. Returns the bytes freed."""
    with locked(entry.name, progress), cache_errors("removing"):
        root = cache_root()
        folders = [
            path
            for pattern in (f"{entry.name}-????????-*", f".{entry.name}-????????-*")
            for path in (root / "models").glob(pattern)
        ]
        parts = list((root / "downloads").glob(f"{entry.source.filename}*"))
        freed = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
        freed += sum(part.stat().st_size for part in parts)
        for folder in folders:
            # Out of the way first: a half-removed folder must not look like a model.
            hidden = folder.with_name(f".{folder.name.lstrip('.')}.removing")
            os.replace(folder, hidden)
            shutil.rmtree(hidden)
        for part in parts:
            part.unlink()
        return freed
