"""One request: what was asked, its outputs, and where its events go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from draftproof.engine.results import Choice, RequestResult, StreamEvent
from draftproof.engine.sequence import Sequence
from draftproof.errors import DraftproofError
from draftproof.sampling import ResolvedSampling, TokenLogprobs


@dataclass(eq=False)
class Request:
    """A request in the engine.

    Attributes:
        request_id: unique among those in the engine.
        prompt_token_ids: never empty.
        sampling: with nothing left open.
        max_length: most tokens, prompt included, that the context holds.
        deliver: called with every event, from the thread that steps the engine; must not block.
        priority: smaller goes first.
        arrival: order of arrival, set by the engine.
        sequences: its `n` outputs; all but the first join when the prompt has been processed.
        cached_tokens: prompt tokens found in the prefix cache.
        prompt_logprobs: of prompt tokens 1 and up, as far as known.
        error: why it failed.
        created: when it came, ``time.perf_counter()``.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: ResolvedSampling
    max_length: int
    deliver: Callable[[StreamEvent], None]
    priority: int = 0
    arrival: int = -1
    sequences: list[Sequence] = field(default_factory=list)
    cached_tokens: int | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: DraftproofError | None = None
    created: float = field(default_factory=time.perf_counter)

    @property
    def finished(self) -> bool:
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.sampling.prompt_logprobs is not None

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether prompt rows have yet to be looked at for their log-probabilities."""
        return self.wants_prompt_logprobs and len(self.prompt_logprobs) < len(self.prompt_token_ids) - 1

    def result(self) -> RequestResult:
        """What there is, finished or not."""
        return RequestResult(
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            choices=[_choice(sequence) for sequence in self.sequences],
            cached_tokens=self.cached_tokens or 0,
            prompt_logprobs=[None, *self.prompt_logprobs] if self.wants_prompt_logprobs else None,
            error=self.error,
        )


def _choice(sequence: Sequence) -> Choice:
    return Choice(
        index=sequence.index,
        text=sequence.text.text,
        token_ids=sequence.output_token_ids,
        finish_reason=sequence.finish_reason or "",
        seed=sequence.seed,
        logprobs=list(sequence.logprobs) if sequence.sampling.logprobs is not None else None,
        stats=sequence.stats,
        stop_reason=sequence.stop_reason,
    )
