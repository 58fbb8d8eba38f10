"""What is measured: batch sizes, draft modes, temperatures, and how often."""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftproof.engine.economics import DraftMode
from draftproof.errors import RequestError

OFF = "off"
"""The mode that the others are compared with."""


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. A cell is a group of prompts at one batch size and one temperature; each runs in every mode.

    Attributes:
        batches: numbers of requests at once, each >= 1.
        modes: draft modes: ``"off"``, ``"auto"``, ``"fixed=N"``.
        temperatures: 0 for greedy, up to 1e6.
        max_tokens: most tokens of each output.
        rounds: measured runs of each mode in a cell; six or more give 95% intervals.
        seed: of the first request of a round; the others count on from it.
        top_p: of sampled requests, in ``(0, 1]``.
        ignore_eos: go on to `max_tokens` past the model's own end tokens.

    Raises:
        RequestError: DP472, something is missing or out of range; DP440, a mode that does not exist.
    """

    batches: tuple[int, ...] = (1, 4, 16)
    modes: tuple[str, ...] = (OFF, "auto")
    temperatures: tuple[float, ...] = (0.0, 0.8)
    max_tokens: int = 64
    rounds: int = 6
    seed: int = 0
    top_p: float = 0.95
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, value in (("batch", min(self.batches, default=0)), ("rounds", self.rounds)):
            _require(value >= 1, name, "whole numbers >= 1", value)
        _require(self.max_tokens >= 2, "max_tokens", "a whole number >= 2", self.max_tokens)
        _require(bool(self.modes), "modes", "at least one", "none")
        _require(bool(self.temperatures), "temperature", "at least one", "none")
        for temperature in self.temperatures:
            fine = math.isfinite(temperature) and 0 <= temperature <= 1e6
            _require(fine, "temperature", "numbers from 0 to 1e6", temperature)
        _require(0 < self.top_p <= 1, "top_p", "a number in (0, 1]", self.top_p)
        for mode in self.modes:
            DraftMode.parse(mode)

    @property
    def drafting_modes(self) -> tuple[str, ...]:
        """Those that need a drafter."""
        return tuple(mode for mode in self.modes if mode != OFF)


def _require(fine: bool, name: str, expected: str, got: object) -> None:
    if not fine:
        raise RequestError("DP472", f"{name}: expected {expected}, got {got}")
