"""The name of the processor that figures were measured on."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_name() -> str:
    """As the system has it; the architecture where it has none."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
