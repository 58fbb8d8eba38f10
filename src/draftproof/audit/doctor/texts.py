"""The target's own greedy answers, and its hidden states along them: what a drafter is examined on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.audit.prompts import AuditPrompt
from draftproof.engine import LLM
from draftproof.engine.chat_options import ChatOptions
from draftproof.engine.prompts import encode_chat, encode_prompt
from draftproof.models.rows import Segment
from draftproof.sampling import SamplingParams

CHAT, RAW = "chat template", "no template"
THINKING, NOT_THINKING = "chat template, thinking", "chat template, not thinking"
_KEPT_FEATURES = 2
"""Choices of taps whose features are kept at once: those as they stand, and those of the correction being tried."""


@dataclass(frozen=True)
class Text:
    """A prompt and the target's greedy answer to it.

    Attributes:
        token_ids: of both.
        prompt_count: tokens of the prompt.
    """

    token_ids: list[int]
    prompt_count: int

    @property
    def output_count(self) -> int:
        return len(self.token_ids) - self.prompt_count


def styles_of(llm: LLM) -> tuple[str, ...]:
    """The ways in which a prompt may be put to this model."""
    template = getattr(llm.tokenizer, "chat_template", None)
    if not template:
        return (RAW,)
    thinking = (THINKING, NOT_THINKING) if "enable_thinking" in str(template) else ()
    return (CHAT, RAW, *thinking)


def encoded_as(llm: LLM, prompts: Sequence[AuditPrompt], style: str) -> list[list[int]]:
    """Token ids of the prompts in one of `styles_of`.

    Raises:
        RequestError: DP401 to DP406; DP402, a prompt is longer than the model's context.
    """
    vocabulary, length = llm.target.info.vocab_size, llm.max_model_len
    if style == RAW:
        return [encode_prompt(llm.tokenizer, prompt.text, vocabulary, length) for prompt in prompts]
    options = ChatOptions(template_kwargs={} if style == CHAT else {"enable_thinking": style == THINKING})
    return [
        encode_chat(
            llm.tokenizer,
            [{"role": "user", "content": prompt.text}],
            vocabulary,
            length,
            options,
        )
        for prompt in prompts
    ]


class TextSet:
    """Greedy answers of one target to prompts put in one way.

    Args:
        llm: the target; nothing is drafted.
        prompts: token ids of each.
        max_tokens: most tokens of an answer.
    """

    def __init__(self, llm: LLM, prompts: Sequence[list[int]], max_tokens: int) -> None:
        self.llm = llm
        params = [
            SamplingParams(temperature=0.0, max_tokens=min(max_tokens, llm.max_model_len - len(tokens)))
            for tokens in prompts
        ]
        results = llm.generate(list(prompts), params, progress=False)
        self.texts = [Text([*r.prompt_token_ids, *r.token_ids], len(r.prompt_token_ids)) for r in results]
        self._features: dict[tuple[int, ...], list[torch.Tensor]] = {}

    def features(self, taps: tuple[int, ...]) -> list[torch.Tensor] | None:
        """Context features ``[tokens, taps * hidden]`` of every text, in the order of `taps`; None for no taps."""
        if not taps:
            return None
        if taps not in self._features:
            while len(self._features) >= _KEPT_FEATURES:
                self._features.pop(list(self._features)[-1])
            self._features[taps] = [self._read(text, taps) for text in self.texts]
        return self._features[taps]

    def _read(self, text: Text, taps: tuple[int, ...]) -> torch.Tensor:
        """One teacher-forced pass over a text. The last token's row is never asked for, so it is left out."""
        tokens = torch.tensor(text.token_ids[:-1], device=self.llm.target.device)
        segment = Segment(self.llm.target.new_sequence(), tokens, len(tokens))
        features = self.llm.target.forward([segment], taps).features
        assert features is not None
        return features
