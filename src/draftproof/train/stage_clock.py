"""How far a stage of equal pieces is."""

from __future__ import annotations

import time

from draftproof.train.bars import Progress, StageProgress


class StageClock:
    """Tells a listener how far a stage of equal pieces is."""

    def __init__(self, stage: str, total: int, progress: Progress) -> None:
        self._stage, self._total, self._progress = stage, total, progress
        self._done, self._began = 0, time.perf_counter()
        self._tell()

    def advance(self, count: int) -> None:
        """So many more are done."""
        self._done += count
        self._tell()

    def _tell(self) -> None:
        seconds = time.perf_counter() - self._began
        self._progress(StageProgress(self._stage, self._done, self._total, 0, 0, seconds))
