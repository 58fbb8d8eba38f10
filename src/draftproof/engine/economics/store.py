"""Measured costs kept in a folder, so that a start need not measure again."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from draftproof.engine.economics.costs import CostTable


@dataclass(frozen=True)
class CostKey:
    """All that measured costs depend on. Attributes say what each is; any text will do."""

    model: str
    dtype: str
    drafter: str
    threads: int
    cpu: str
    torch: str
    version: str
    max_sequences: int = 1
    max_draft_tokens: int = 0

    def file(self, folder: Path) -> Path:
        text = json.dumps(asdict(self), sort_keys=True)
        return folder / f"costs-{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"


def load_costs(folder: Path, key: CostKey) -> CostTable | None:
    """The table kept under this key; None when there is none, or none that can be read."""
    try:
        data = json.loads(key.file(folder).read_text(encoding="utf-8"))
        return CostTable.from_json(data["costs"]) if data["key"] == asdict(key) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_costs(folder: Path, key: CostKey, costs: CostTable) -> bool:
    """Keep a table. False when the folder cannot be written: costs are then measured at the next start again."""
    text = json.dumps({"key": asdict(key), "costs": costs.to_json()}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".costs-", dir=folder)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, key.file(folder))  # at once: another process may be reading
        except BaseException:
            os.unlink(name)
            raise
    except OSError:
        return False
    return True


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
