"""The target that an exported drafter belongs to: its sizes, and where its vocabulary lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftproof.errors import RequestError
from draftproof.models.loading import read_config
from draftproof.models.registry import resolve_model

Kind = Literal["known", "folder", "hub", "gguf"]


@dataclass(frozen=True)
class ExportTarget:
    """What an export has to know of the target.

    Attributes:
        name: as the user named it.
        path: folder of the model, or the GGUF file.
        kind: how the name was understood.
        hidden_size, num_layers, vocab_size: of the text model.
        architectures: as its ``config.json`` lists them; empty for a GGUF file.
    """

    name: str
    path: Path
    kind: Kind
    hidden_size: int
    num_layers: int
    vocab_size: int
    architectures: tuple[str, ...] = ()

    @property
    def verifier(self) -> str | None:
        """The name by which another engine finds it: hub id or absolute path; None for a GGUF file."""
        if self.kind == "gguf":
            return None
        return self.name if self.kind == "hub" else str(self.path)


def read_target(spec: str) -> ExportTarget:
    """The target that `spec` names: a known name, a folder, a hub id, or a GGUF file. No weights are read.

    Raises:
        ModelError: DP200 to DP213, DP250, DP260: it cannot be found or read.
        RequestError: DP532, a GGUF file that cannot be read.
    """
    if spec.lower().endswith(".gguf"):
        return _from_gguf(spec)
    found = resolve_model(spec)
    config: Any = read_config(found.path, spec, trust_remote_code=False)
    text = config.get_text_config()
    return ExportTarget(
        name=spec,
        path=found.path,
        kind=found.kind,
        hidden_size=int(text.hidden_size),
        num_layers=int(text.num_hidden_layers),
        vocab_size=int(text.vocab_size),
        architectures=tuple(getattr(config, "architectures", None) or ()),
    )


def _from_gguf(spec: str) -> ExportTarget:
    from gguf import GGUFReader

    path = Path(spec).expanduser()
    try:
        reader = GGUFReader(path)
        architecture = _content(reader, "general.architecture")
        return ExportTarget(
            name=spec,
            path=path,
            kind="gguf",
            hidden_size=int(_content(reader, f"{architecture}.embedding_length")),
            num_layers=int(_content(reader, f"{architecture}.block_count")),
            vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        )
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise RequestError(
            "DP532", f"{spec} cannot be read as a GGUF file of a language model: {_reason(error)}"
        ) from error


def _content(reader: Any, key: str) -> Any:
    return reader.fields[key].contents()


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
