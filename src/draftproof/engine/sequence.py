"""One output of a request on its way through the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draftproof.cache import BlockTable
from draftproof.engine.economics import RequestAcceptance
from draftproof.engine.output_text import OutputText
from draftproof.engine.prediction import PredictionReader
from draftproof.engine.results import RequestStats
from draftproof.models.drafters.base import DraftSampling
from draftproof.models.kv import SequenceKV
from draftproof.sampling import ResolvedSampling, RowRules, TokenLogprobs

if TYPE_CHECKING:
    import torch

    from draftproof.engine.request import Request


@dataclass(eq=False, slots=True)
class KeptRows:
    """Context features of consecutive tokens: `count` rows of ``features [rows, taps * hidden]``, each `step` after the last."""

    features: torch.Tensor
    first: int
    count: int
    step: int = 1

    def rows(self) -> torch.Tensor:
        """``[count, taps * hidden]``, not copied."""
        return self.features[self.first : self.first + (self.count - 1) * self.step + 1 : self.step]

    def goes_on(self, features: torch.Tensor, first: int, count: int) -> bool:
        """Take in the features of the next `count` tokens, if they lie at the same pace in the same place."""
        if features is not self.features:
            return False
        pace = first - self.first - (self.count - 1) * self.step
        if self.count == 1 and count == 1 and pace > 0:
            self.step = pace
        elif pace != self.step or (count > 1 and pace != 1):
            return False
        self.count += count
        return True


@dataclass
class SequenceMemory:
    """What a running sequence holds of the pool.

    Attributes:
        table: its blocks; `kv` and `draft_state` read the same list.
        kv: the target's keys and values.
        draft_state: the drafter's memory of the sequence; None without a drafter.
        draft_length: tokens whose context the drafter has taken in.
        waiting: where the context features of the tokens after those lie, which are not yet taken in: the drafter's keys
            and values are produced in batches, when drafting needs them.
        indexed_blocks: full blocks the prefix index knows of.
        drafted: whether the drafter keeps up with the sequence, so that it can be drafted. Not without a drafter, nor behind a
            cached prefix that lacks the drafter's part.
    """

    table: BlockTable
    kv: SequenceKV
    draft_state: Any
    draft_length: int
    waiting: list[KeptRows] = field(default_factory=list)
    indexed_blocks: int = 0
    drafted: bool = True

    @property
    def waiting_length(self) -> int:
        """Tokens the drafter has yet to take in."""
        return self.kv.length - self.draft_length


@dataclass(eq=False)
class Sequence:
    """A choice's tokens, rules and progress.

    Attributes:
        request: whose output it is.
        index: which of the request's `n` choices.
        seed: the choice's own.
        end_token_ids: tokens that end the output.
        text: detokeniser and stop strings.
        rules: penalties, masks, grammar; None when rows are taken as they come.
        acceptance: what economics knows of it.
        tokens: committed tokens, prompt first.
        memory: None while it waits for admission.
        finish_reason: None while it runs.
        logprobs: of output tokens, when asked for.
        queued_since: when it last began to wait, ``time.perf_counter()``.
        prompt_length: tokens of the prompt.
        output_limit: most output tokens: what the request allows, or what the context leaves.
        greedy_as_is: whether it takes the likeliest token of every row as it comes.
        prediction: where it is in the output that the request predicts; None where it predicts none.
        has_own_drafts: whether the request says how to draft it, by a length or a prediction.
    """

    request: Request
    index: int
    seed: int
    end_token_ids: frozenset[int]
    text: OutputText
    rules: RowRules | None
    acceptance: RequestAcceptance
    tokens: list[int] = field(default_factory=list)
    memory: SequenceMemory | None = None
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    stats: RequestStats = field(default_factory=RequestStats)
    prediction: PredictionReader | None = None
    queued_since: float = field(default_factory=time.perf_counter)
    prompt_length: int = field(init=False)
    output_limit: int = field(init=False)
    greedy_as_is: bool = field(init=False)
    has_own_drafts: bool = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.tokens = list(request.prompt_token_ids)
        # Asked for several times a step, and fixed.
        self.prompt_length = len(self.tokens)
        self.output_limit = min(request.sampling.max_tokens, request.max_length - self.prompt_length)
        self.greedy_as_is = request.sampling.is_greedy and self.rules is None
        self.has_own_drafts = self.prediction is not None or request.sampling.draft_length is not None

    @property
    def sampling(self) -> ResolvedSampling:
        return self.request.sampling

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string, or the stop token of the request's own, that ended it; None for anything else."""
        if self.finish_reason != "stop":
            return None
        found = self.text.stop_string
        if found is None and self.tokens[-1] in self.sampling.stop_token_ids:
            return self.tokens[-1]
        return found

    @property
    def output_token_ids(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def output_length(self) -> int:
        """Output tokens so far; also the output position of the next one."""
        return len(self.tokens) - self.prompt_length

    @property
    def running_memory(self) -> SequenceMemory:
        """Its memory.

        Raises:
            RuntimeError: it has none: it is not running.
        """
        if self.memory is None:
            raise RuntimeError(f"{self.request.request_id} is not running")
        return self.memory

    @property
    def pending(self) -> int:
        """Committed tokens the target has not processed: 1 (the anchor) when decoding, more while (re)filling."""
        memory = self.memory
        return len(self.tokens) - (memory if memory is not None else self.running_memory).kv.length

    @property
    def order(self) -> tuple[int, int, int]:
        """Who goes first: priority, then arrival."""
        return (self.request.priority, self.request.arrival, self.index)

    def draft_room(self, most: int) -> int:
        """How many draft tokens can be of use: the bonus comes on top, and nothing may pass a limit."""
        return max(0, min(most, self.output_limit - self.output_length - 1))

    def draft_sampling(self) -> DraftSampling:
        """The sampling, as drafters take it."""
        chosen = self.sampling
        return DraftSampling(chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p, self.seed)
