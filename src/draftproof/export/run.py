"""One export, from the drafter's folder to a finished file or folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftproof.errors import RequestError
from draftproof.export.carry import check_gguf, check_speculators
from draftproof.export.output import check_output, staged, staged_file
from draftproof.export.source import Source, read_source
from draftproof.export.target import ExportTarget, read_target
from draftproof.models.drafters.shipped import default_drafter
from draftproof.models.registry import resolve_model
from draftproof.models.registry.hub import is_hub_id

FORMATS = ("speculators", "gguf")


@dataclass(frozen=True)
class ExportOptions:
    """How to export.

    Attributes:
        target: known name, folder, hub id or GGUF file of the target; needed for ``gguf``.
        verifier: what a `speculators` config names as its verifier, where that is not `target`.
        dtype: of the matrices in a GGUF file: auto, f32, f16, bf16 or q8_0.
        overwrite: replace what is at the output path.
    """

    target: str | None = None
    verifier: str | None = None
    dtype: str = "auto"
    overwrite: bool = False


@dataclass(frozen=True)
class ExportSummary:
    """What was written.

    Attributes:
        format: one of `FORMATS`.
        path: the folder or file.
        size: bytes.
        dtype: in which the matrices are stored.
        taps: as the checkpoint counts them.
        written_taps: as the export counts them.
        draft_tokens: the most it proposes at once.
        verifier: what a `speculators` config names as its target; None for an open one and for GGUF.
    """

    format: str
    path: Path
    size: int
    dtype: str
    taps: tuple[int, ...]
    written_taps: tuple[int, ...]
    draft_tokens: int
    verifier: str | None = None


def export_drafter(
    drafter: str | Path, to: str, out: str | Path, options: ExportOptions | None = None
) -> ExportSummary:
    """Write a drafter of the published layout in the format of another engine.

    Args:
        drafter: checkpoint folder, hub id, or ``"default"`` for the one that comes with the package.
        to: ``"speculators"`` (a folder; vLLM, the speculators library) or ``"gguf"`` (a file; llama.cpp).
        out: where to. It appears whole or not at all.
        options: see there.

    Raises:
        DrafterError: DP301 to DP314, the drafter cannot be used or does not fit the target; DP531, it asks for something that
            the format cannot hold; DP548, DP549, there is no default one.
        ModelError: DP2xx, the target cannot be found or read.
        RequestError: DP530, no such format; DP532, the target is needed or unreadable; DP533, its tokenizer cannot be
            written; DP534, the output path; DP535, the dtype.
    """
    chosen, path = options or ExportOptions(), Path(out)
    if to not in FORMATS:
        raise RequestError("DP530", f"--to must be {' or '.join(FORMATS)}, got {to!r}")
    folder = _folder(drafter, chosen.target)
    check_output(path, folder, chosen.overwrite, is_folder=to == "speculators")
    if to == "gguf" and chosen.target is None:
        raise RequestError(
            "DP532", "a GGUF drafter carries its target's vocabulary; name the target with --target"
        )
    target = None if chosen.target is None else read_target(chosen.target)
    source = read_source(folder, target)
    if to == "gguf" and target is not None:
        return _to_gguf(path, source, target, chosen)
    return _to_speculators(path, source, target, chosen)


def _folder(drafter: str | Path, target: str | None) -> Path:
    """Where the checkpoint lies."""
    if drafter == "default":
        if target is None:
            raise RequestError(
                "DP532", "which drafter is the default one depends on the target; name it with --target"
            )
        return default_drafter(target)
    if not Path(drafter).exists() and is_hub_id(str(drafter)):
        return resolve_model(str(drafter)).path
    return Path(drafter)


def _to_speculators(
    path: Path, source: Source, target: ExportTarget | None, options: ExportOptions
) -> ExportSummary:
    from draftproof.export.speculators import speculators_config, write_speculators

    if options.dtype != "auto":
        raise RequestError("DP535", "speculators weights keep the checkpoint's dtype; --dtype is for gguf")
    check_speculators(source)
    verifier = options.verifier or (target.verifier if target is not None else None)
    with staged(path) as folder:
        write_speculators(folder, source, target, verifier)
    written = speculators_config(source, target, verifier)
    return ExportSummary(
        format="speculators",
        path=path,
        size=sum((path / name).stat().st_size for name in ("config.json", "model.safetensors")),
        dtype=written["dtype"],
        taps=source.config.target_layer_ids,
        written_taps=tuple(written["aux_hidden_state_layer_ids"]),
        draft_tokens=source.config.block_size - 1,
        verifier=verifier,
    )


def _to_gguf(path: Path, source: Source, target: ExportTarget, options: ExportOptions) -> ExportSummary:
    from draftproof.export.gguf_file import write_gguf

    if options.verifier is not None:
        raise RequestError("DP532", "a GGUF file names no verifier; --verifier is for speculators")
    check_gguf(source)
    with staged_file(path) as file:
        dtype = write_gguf(file, source, target, options.dtype)
    taps = source.config.target_layer_ids
    return ExportSummary(
        format="gguf",
        path=path,
        size=path.stat().st_size,
        dtype=dtype,
        taps=taps,
        written_taps=tuple(tap + 1 for tap in taps),
        draft_tokens=source.config.block_size - 1,
    )
