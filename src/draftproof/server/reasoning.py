"""Models that think before they answer, and how they mark it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftproof.errors import ServerError


@dataclass(frozen=True)
class ReasoningFormat:
    """How thoughts are told from the answer.

    Attributes:
        name: for `--reasoning-format`.
        start, end: texts around the thoughts.
        starts_inside: the template has written `start` already, so that the output begins with a thought.
    """

    name: str
    start: str
    end: str
    starts_inside: bool = False


_FORMATS = {
    "think": ReasoningFormat("think", "<think>", "</think>"),
    "think_open": ReasoningFormat("think_open", "<think>", "</think>", starts_inside=True),
}


def reasoning_format(name: str) -> ReasoningFormat | None:
    """A format by name; ``"none"``: no thoughts are told apart.

    Raises:
        ServerError: DP670, no format has that name.
    """
    if name == "none":
        return None
    if name not in _FORMATS:
        raise ServerError(
            "DP670", f"reasoning_format must be one of none, {', '.join(_FORMATS)}, got {name[:60]!r}"
        )
    return _FORMATS[name]


def detect_reasoning(tokenizer: Any) -> ReasoningFormat | None:
    """The format that a model's chat template looks like; None where it knows no thoughts."""
    template = template_text(tokenizer)
    found = _FORMATS["think"]
    if found.start not in template and found.end not in template:
        return None
    # A template that opens the thought itself does so behind the assistant's header, as the last thing it writes.
    tail = template[template.rfind("add_generation_prompt") :] if "add_generation_prompt" in template else ""
    opened = found.start in tail and found.end not in tail
    return _FORMATS["think_open"] if opened else found


def template_text(tokenizer: Any) -> str:
    """A tokenizer's chat template, or all of them."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        return "\n".join(map(str, template.values()))
    return template if isinstance(template, str) else ""
