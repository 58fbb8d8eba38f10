"""Who answers in `draftproof chat`, seen from the conversation; and the one who lives in this process."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

from draftproof.engine import LLM, RequestResult, TextPiece
from draftproof.sampling import SamplingParams

Messages = list[dict[str, str]]
DraftLength = int | str | None
"""``"auto"`` or None: as the engine was started; a number of tokens; 0 for none."""


class Sampling(TypedDict):
    """The sampling parameters that a conversation has."""

    max_tokens: int
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None


@dataclass
class Wishes:
    """How answers are to be made. The conversation's commands change them."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    draft_length: DraftLength = None

    @property
    def sampling(self) -> Sampling:
        """The fields of `SamplingParams`."""
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Said:
    """A part of an answer.

    Attributes:
        pieces: new text.
        thoughts: new text of a model that thinks before it answers.
        note: one line about the whole answer, with its last part.
    """

    pieces: list[TextPiece] = field(default_factory=list)
    thoughts: str = ""
    note: str | None = None


class Speaker(Protocol):
    """Answers conversations.

    Attributes:
        name: the model's.
        drafts: why nothing is drafted whatever is asked for, in words; None where drafting can be chosen.
        waits_for_itself: whether Ctrl-C may cut into it at any point; else it is let finish its step first.
    """

    name: str
    drafts: str | None
    waits_for_itself: bool

    def answer(self, messages: Messages, wishes: Wishes) -> Generator[Said, None, None]:
        """The answer as it comes. Closing the iterator ends it.

        Raises:
            DraftproofError: there is none, or no more of it.
        """


class Local:
    """A model in this process."""

    waits_for_itself = False

    def __init__(self, llm: LLM, name: str) -> None:
        self._llm = llm
        self.name = name
        self.drafts = None if llm.drafter is not None else "no drafter is loaded"

    def answer(self, messages: Messages, wishes: Wishes) -> Generator[Said, None, None]:
        """See `Speaker`."""
        params = SamplingParams(**wishes.sampling, draft_length=wishes.draft_length)
        for event in self._llm.stream_chat(messages, params):
            yield Said(event.pieces, note=None if event.result is None else self._note(event.result))

    def _note(self, result: RequestResult) -> str:
        stats, count = result.stats, len(result.token_ids)
        return note(
            count,
            result.finish_reason,
            stats.decode_tokens_per_second,
            Drafted(stats.target_steps, stats.drafted_tokens, stats.accepted_tokens, stats.acceptance_length),
            result.seed,
        )


@dataclass(frozen=True)
class Drafted:
    """What the drafter did for one answer."""

    steps: int
    drafted: int
    accepted: int
    acceptance_length: float


def note(count: int, finish: str, speed: float, drafted: Drafted | None, seed: int | None) -> str:
    """One line about an answer."""
    parts = [f"{count} token{'' if count == 1 else 's'} ({finish})"]
    if speed:
        parts.append(f"{speed:.1f} tok/s")
    if drafted is not None:
        parts.append(
            f"acceptance length {drafted.acceptance_length:.2f}, "
            f"{drafted.accepted} of {drafted.drafted} drafts kept in {drafted.steps} steps"
        )
    if seed is not None:
        parts.append(f"seed {seed}")
    return " · ".join(parts)
