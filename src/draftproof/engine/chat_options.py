"""`ChatOptions`: how a conversation becomes a prompt, beyond its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ChatOptions:
    """What the model's chat template is told beside the messages.

    Attributes:
        tools: function descriptions in OpenAI's form, for templates that know tools; None = none.
        add_generation_prompt: open the assistant's turn after the last message.
        continue_final_message: leave the last message open, so that the output goes on with it; no turn is opened then.
        template_kwargs: extra variables of the template, e.g. ``{"enable_thinking": False}``.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
