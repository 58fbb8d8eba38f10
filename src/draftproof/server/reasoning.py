"""Models that think before they answer, and how they mark it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from draftproof.engine.chat_options import ChatOptions
from draftproof.errors import RequestError, ServerError
from draftproof.server.marks import any_special, grammar_id, single_id, template_text

if TYPE_CHECKING:
    from draftproof.engine import LLM


@dataclass(frozen=True)
class ReasoningFormat:
    """How thoughts are told from the answer.

    Attributes:
        name: for `--reasoning-format`.
        start, end: texts around the thoughts.
        starts_inside: the prompt ends with `start`, so that the output begins with a thought.
        start_id, end_id: token ids, where the texts are tokens that are no text to a grammar.
        hidden: whether one of them is a special token, which outputs leave out as a rule.
        end_token: the id of the token that always stands for `end`, special or not; None where it is several.
    """

    name: str
    start: str
    end: str
    starts_inside: bool = False
    start_id: int | None = None
    end_id: int | None = None
    hidden: bool = False
    end_token: int | None = None

    def thought_tokens(self, text: str, token_ids: Sequence[int]) -> int | None:
        """How many tokens of an output are thoughts, the closing mark included; None where that cannot be told."""
        if not self.starts_inside and not text.lstrip().startswith(self.start):
            return 0
        if self.end_token is None:
            return None
        return token_ids.index(self.end_token) + 1 if self.end_token in token_ids else len(token_ids)


_FORMATS = {
    "think": ReasoningFormat("think", "<think>", "</think>"),
    "think_open": ReasoningFormat("think_open", "<think>", "</think>", starts_inside=True),
    "mistral": ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
}


def reasoning_format(name: str, tokenizer: Any = None) -> ReasoningFormat | None:
    """A format by name, with a tokenizer's ids; ``"none"``: no thoughts are told apart.

    Raises:
        ServerError: DP670, no format has that name.
    """
    if name == "none":
        return None
    if name not in _FORMATS:
        raise ServerError(
            "DP670", f"reasoning_format must be one of none, {', '.join(_FORMATS)}, got {name[:60]!r}"
        )
    return _of_tokenizer(_FORMATS[name], tokenizer)


def detect_reasoning(tokenizer: Any) -> ReasoningFormat | None:
    """The format that a model's chat template looks like; None where it knows no thoughts."""
    template = template_text(tokenizer)
    for name in ("think", "mistral"):
        if _FORMATS[name].start in template or _FORMATS[name].end in template:
            return _of_tokenizer(_FORMATS[name], tokenizer)
    return None


def _of_tokenizer(format_: ReasoningFormat, tokenizer: Any) -> ReasoningFormat:
    if tokenizer is None:
        return format_
    return replace(
        format_,
        start_id=grammar_id(tokenizer, format_.start),
        end_id=grammar_id(tokenizer, format_.end),
        hidden=any_special(tokenizer, format_.start, format_.end),
        end_token=single_id(tokenizer, format_.end),
    )


def as_opened(
    format_: ReasoningFormat, llm: LLM, messages: Sequence[Mapping[str, Any]], options: ChatOptions
) -> ReasoningFormat:
    """The format for the answer to a conversation: some templates open the thought themselves, at times depending on variables.

    Args:
        format_: the model's. One that says itself that outputs begin inside stays as it is.
        llm: renders.
        messages: the conversation, checked; only its last one matters, and only if the answer goes on with it.
        options: as it is going to be rendered.
    """
    if format_.starts_inside:
        return format_
    if options.continue_final_message:
        text = messages[-1]["content"]
        inside = text.rfind(format_.start) > text.rfind(format_.end)
    else:
        try:
            # What stands behind the last message depends on no message; a short one is quickly rendered.
            prompt = llm.render_chat([{"role": "user", "content": "-"}], replace(options, tools=None))
        except RequestError:  # the conversation itself may fare better, or fails with its own words
            return format_
        inside = prompt.rstrip().endswith(format_.start)
    return replace(format_, starts_inside=inside)
