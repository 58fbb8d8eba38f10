"""Models from the hub, by ``owner/name``."""

from __future__ import annotations

import re
from pathlib import Path

from draftproof.errors import ModelError
from draftproof.models.registry.progress import Progress

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TEXT = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_IGNORE = ("original/*", "consolidated*", "onnx/*", "openvino/*", "*.gguf", "training_args.bin")


def is_hub_id(spec: str) -> bool:
    """Whether `spec` is written like a hub id."""
    return _HUB_ID.fullmatch(spec) is not None


def fetch_snapshot(
    repo: str, revision: str | None, offline: bool, trust_remote_code: bool, progress: Progress
) -> Path:
    """Download a hub repository's config, tokenizer and weights into the hub's own cache.

    Safetensors are preferred; pickled weights are fetched only where a repository has nothing else. Python
    files are fetched only with `trust_remote_code`.

    Raises:
        ModelError: DP205 no network (or offline) and no local copy; DP206 no such repository or revision, or
            it needs a licence accepted.
    """
    code = ("*.py",) if trust_remote_code else ()
    if not offline:
        progress.note(f"looking for {repo} on the hub ...")
    folder = _snapshot(repo, revision, offline, (*_TEXT, "*.safetensors", *code))
    if not any(folder.glob("*.safetensors")):
        folder = _snapshot(repo, revision, offline, (*_TEXT, "pytorch_model*.bin", *code))
    return folder


def _snapshot(repo: str, revision: str | None, offline: bool, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import errors as hub_errors
    from huggingface_hub import snapshot_download

    where = f"{repo} at revision {revision}" if revision else repo
    try:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=list(patterns),
                ignore_patterns=list(_IGNORE),
                local_files_only=offline,
            )
        )
    except hub_errors.GatedRepoError as error:
        raise ModelError(
            "DP206", f"{repo} is gated: accept its licence on the hub and run `hf auth login`"
        ) from error
    except hub_errors.RepositoryNotFoundError as error:
        raise ModelError("DP206", f"the hub has no public model {repo} (or you are not signed in)") from error
    except hub_errors.RevisionNotFoundError as error:
        raise ModelError("DP206", f"the hub has no {where}") from error
    except hub_errors.HFValidationError as error:
        raise ModelError("DP206", f"{repo} is no valid hub id: {error}") from error
    except Exception as error:  # Each release of the hub client has its own network errors.
        raise _unreachable(where, offline, error) from error


def _unreachable(where: str, offline: bool, error: Exception) -> ModelError:
    remedy = "go online once, or pass the path of a folder that holds the model"
    if offline:
        return ModelError(
            "DP205", f"{where} is not in the hub's local cache and offline was asked for; {remedy}"
        )
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
    return ModelError("DP205", f"{where} could not be fetched from the hub ({reason}); {remedy}")
