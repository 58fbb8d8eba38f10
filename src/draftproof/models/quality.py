"""How well a model in fewer bits says what it says in bfloat16: teacher-forced, token by token.

The bfloat16 executor answers a fixed set of questions greedily. Then every token of the answers is predicted once more in
both precisions, each time after the same true tokens, so one difference does not lead to others. Two figures count:

* agreement: for which share of the tokens both hold the same token for the likeliest;
* the rise of the negative log-likelihood that is to be expected on text of the reference's own: its cross-entropy with the
  other precision over its own entropy, less one. It is averaged over what the reference might have said at every place,
  not over the one token that it did say: that token was chosen because the reference's rounding favoured it, and with some
  thousand tokens its likelihood alone is uncertain by more than the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from draftproof.models.rows import Segment

if TYPE_CHECKING:
    from draftproof.models.executor import TargetModel

LEAST_AGREEMENT = 0.97
MOST_RISE = 0.005
ANSWER_TOKENS = 64
"""Tokens of an answer at most."""


@dataclass(frozen=True)
class Answer:
    """Token ids of a question and of what followed."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Quality:
    """What fewer bits change.

    Attributes:
        agreement: share of tokens with the same argmax as the reference.
        rise: expected relative rise of the negative log-likelihood.
        tokens: compared.
    """

    agreement: float
    rise: float
    tokens: int

    @property
    def good(self) -> bool:
        """Whether this may be used without being asked for."""
        return self.agreement >= LEAST_AGREEMENT and self.rise <= MOST_RISE

    def __str__(self) -> str:
        return (
            f"{self.agreement:.1%} of {self.tokens} tokens as in bfloat16, "
            f"negative log-likelihood {100 * self.rise:+.2f}%"
        )


@torch.inference_mode()
def answers_of(
    target: TargetModel,
    prompts: Sequence[Sequence[int]],
    end_token_ids: frozenset[int],
    limit: int = ANSWER_TOKENS,
) -> list[Answer]:
    """Greedy answers, all at once.

    Args:
        target: who answers.
        prompts: token ids, at least one each; with room for the answer in the target's context.
        end_token_ids: an answer ends with one of these.
        limit: its most tokens.
    """
    kvs = [target.new_sequence() for _ in prompts]
    answers: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    following = [torch.tensor(prompt) for prompt in prompts]
    while running:
        segments = [Segment(kvs[n], following[n], len(following[n]) - 1) for n in running]
        chosen = target.forward(segments).logits.argmax(-1)
        for place, n in enumerate(running):
            kvs[n].commit_to(kvs[n].written)
            answers[n].append(int(chosen[place]))
            following[n] = chosen[place : place + 1]
        running = [n for n in running if answers[n][-1] not in end_token_ids and len(answers[n]) < limit]
    return [Answer(tuple(prompt), tuple(tokens)) for prompt, tokens in zip(prompts, answers, strict=True)]


@torch.inference_mode()
def compare(reference: TargetModel, other: TargetModel, answers: Iterable[Answer]) -> Quality:
    """What the other precision changes. The two share a vocabulary; logits of one answer at a time are in memory."""
    same = tokens = 0
    entropy = divergence = 0.0
    for answer in answers:
        sure, doubtful = (logits_of(target, answer) for target in (reference, other))
        same += int((sure.argmax(-1) == doubtful.argmax(-1)).sum())
        tokens += len(answer.tokens)
        own = sure.log_softmax(-1)
        shares = own.exp()
        entropy -= float((shares * own).sum())
        divergence += float((shares * (own - doubtful.log_softmax(-1))).sum())
    if not tokens:
        raise ValueError("nothing to compare")
    return Quality(same / tokens, divergence / max(entropy, 1e-9), tokens)


def logits_of(target: TargetModel, answer: Answer) -> torch.Tensor:
    """Float32 ``[tokens, vocab]``: the row from which each token of the answer was chosen."""
    given = torch.tensor(answer.prompt + answer.tokens[:-1])
    segment = Segment(target.new_sequence(), given, len(answer.prompt) - 1)
    return target.forward([segment]).logits.float()
