"""Resident memory of this process, now and at its peak."""

from __future__ import annotations

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident_mib() -> float | None:
    """What is resident now, in MiB; None where the system does not say."""
    return _status_mib("VmRSS")


def peak_mib() -> float | None:
    """The most that was resident since `forget_peak`, or since the process began where that does nothing."""
    peak = _status_mib("VmHWM")
    return peak if peak is not None else _peak_of_all_time()


def forget_peak() -> None:
    """Let `peak_mib` start again from what is resident now. Linux only; elsewhere peaks are the process's."""
    try:
        _CLEAR.write_text("5", encoding="ascii")  # see "clear_refs" in proc(5)
    except OSError:
        return


def _status_mib(field: str) -> float | None:
    try:
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def _peak_of_all_time() -> float | None:
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
