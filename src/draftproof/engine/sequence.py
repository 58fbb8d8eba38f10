"""One request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from draftproof.engine.output_text import OutputText
from draftproof.engine.results import RequestStats
from draftproof.models.drafters.base import DraftSampling
from draftproof.models.kv import SequenceKV
from draftproof.sampling import ResolvedSampling
from draftproof.verify import SamplingInfo


@dataclass
class Sequence:
    """A request's tokens, caches and progress.

    Attributes:
        prompt_token_ids: never empty.
        sampling: with nothing left open.
        max_length: most tokens, prompt included, that the context holds.
        end_token_ids: tokens that end the output.
        kv: the target's keys and values: all committed tokens but the last (the anchor) once prefilled.
        draft_state: the drafter's memory of the sequence; None without a drafter.
        text: detokeniser and stop strings.
        sampling_info: the sampling as verification takes it, one entry.
        tokens: committed tokens, prompt first.
        finish_reason: None while it runs.
    """

    prompt_token_ids: list[int]
    sampling: ResolvedSampling
    max_length: int
    end_token_ids: frozenset[int]
    kv: SequenceKV
    draft_state: Any
    text: OutputText
    sampling_info: SamplingInfo
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stats: RequestStats = field(default_factory=RequestStats)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.tokens[len(self.prompt_token_ids) :]

    @property
    def output_length(self) -> int:
        """Output tokens so far; also the output position of the next one."""
        return len(self.tokens) - len(self.prompt_token_ids)

    @property
    def output_limit(self) -> int:
        """Most output tokens: what the request allows, or what the context leaves."""
        return min(self.sampling.max_tokens, self.max_length - len(self.prompt_token_ids))

    @property
    def anchor(self) -> int:
        """The last committed token, which the target has not yet processed."""
        return self.tokens[-1]

    def draft_room(self, most: int) -> int:
        """How many draft tokens can be of use: the bonus comes on top, and nothing may pass a limit."""
        return max(0, min(most, self.output_limit - self.output_length - 1))

    def draft_sampling(self) -> DraftSampling:
        """The request's sampling, as drafters take it."""
        chosen = self.sampling
        return DraftSampling(chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p, chosen.seed)
