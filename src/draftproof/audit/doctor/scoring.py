"""How much of a text a drafter would have had accepted, without decoding it: every position of a known greedy text is an anchor.

At temperature 0 the text does not depend on the drafter, so what a step would accept is what the proposal has in common with
the text. All anchors of a text are proposed for in one pass, and the steps that decoding would have taken are walked afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftproof.audit.doctor.texts import Text, TextSet
from draftproof.models.drafters import ContextUpdate, Drafter, DraftRequest, DraftSampling

_ANCHORS_A_PASS = 64
_GREEDY = DraftSampling()


@dataclass(frozen=True)
class Score:
    """What a drafter did on some texts.

    Attributes:
        tokens: of each text, the output tokens after the first one, which the prompt's own pass gives.
        steps: of each text, the steps it would take to decode them.
        reached: by slot from 1 on, the anchors at which every slot before agreed and the text goes on as far as this slot.
        agreed: by slot, those of them at which this slot agreed as well.
    """

    tokens: tuple[int, ...]
    steps: tuple[int, ...]
    reached: tuple[int, ...]
    agreed: tuple[int, ...]

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a step (tau), bonus included; 1.0 without any step."""
        return sum(self.tokens) / sum(self.steps) if sum(self.steps) else 1.0


def score(drafter: Drafter, texts: TextSet) -> Score:
    """Score a drafter on a target's greedy texts, drafting as far as it can at every anchor.

    The acceptance length is the one that decoding in mode ``fixed=N`` gives, N the drafter's most, but for the last steps of a
    text, where an engine drafts no further than the text may go.
    """
    features = texts.features(drafter.tap_layer_ids)
    slots = drafter.max_draft_tokens
    tokens, steps = [], []
    reached, agreed = [0] * slots, [0] * slots
    for index, text in enumerate(texts.texts):
        own = features[index] if features is not None else None
        accepted = list(_accepted(drafter, text, own))
        for count, room in accepted:
            for slot in range(min(count + 1, room)):
                reached[slot] += 1
                agreed[slot] += slot < count
        tokens.append(len(accepted))
        steps.append(_steps([count for count, _ in accepted]))
    return Score(tuple(tokens), tuple(steps), tuple(reached), tuple(agreed))


def undrafted(texts: TextSet) -> Score:
    """What no drafter at all scores: a step for each token."""
    tokens = tuple(max(0, text.output_count - 1) for text in texts.texts)
    return Score(tokens, tokens, (), ())


def _accepted(drafter: Drafter, text: Text, features: torch.Tensor | None) -> Iterator[tuple[int, int]]:
    """For each anchor, the draft tokens kept and the most that could have been.

    Anchors are the output tokens but the last, which has nothing behind it.
    """
    root = drafter.new_state()
    if features is not None:
        drafter.extend([ContextUpdate(root, features, 0)])
    anchors = range(text.prompt_count, len(text.token_ids) - 1)
    for first in range(0, len(anchors), _ANCHORS_A_PASS):
        some = anchors[first : first + _ANCHORS_A_PASS]
        proposals = drafter.propose([_request(drafter, root, text, anchor) for anchor in some])
        for anchor, proposal in zip(some, proposals, strict=True):
            truth = text.token_ids[anchor + 1 : anchor + 1 + drafter.max_draft_tokens]
            yield _in_common(proposal.tokens.tolist(), truth), len(truth)


def _request(drafter: Drafter, root: Any, text: Text, anchor: int) -> DraftRequest:
    """A wish at an anchor: the sequence as it was when the anchor had just been committed, on the whole text's pages."""
    pages = getattr(root, "pages", None)
    state = root if pages is None else drafter.new_state(pages, root.table, anchor)
    return DraftRequest(
        state=state,
        tokens=text.token_ids[: anchor + 1],
        num_draft_tokens=drafter.max_draft_tokens,
        output_position=anchor + 1 - text.prompt_count,
        sampling=_GREEDY,
    )


def _in_common(drafts: Sequence[int], truth: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    count = 0
    for draft, token in zip(drafts, truth, strict=False):
        if draft != token:
            break
        count += 1
    return count


def _steps(accepted: Sequence[int]) -> int:
    """Steps from the first anchor to the end, each going on behind what it accepted and the bonus token."""
    at = steps = 0
    while at < len(accepted):
        at += accepted[at] + 1
        steps += 1
    return steps
