"""Trained drafters in the formats of other engines: `speculators` folders and GGUF files."""

from __future__ import annotations

from draftproof.export.run import FORMATS, ExportOptions, ExportSummary, export_drafter
from draftproof.export.target import ExportTarget, read_target

__all__ = [
    "FORMATS",
    "ExportOptions",
    "ExportSummary",
    "ExportTarget",
    "export_drafter",
    "read_target",
]
