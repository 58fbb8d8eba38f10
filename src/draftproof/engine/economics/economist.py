"""Who decides how far each sequence drafts in each step. Nothing here sees a token: decisions change speed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.engine.economics.acceptance import (
    FIRST_WAIT,
    WEIGHTS,
    DraftOutcome,
    EngineAcceptance,
    RequestAcceptance,
)
from draftproof.engine.economics.calibration import ConfidenceMap
from draftproof.engine.economics.choice import (
    Choice,
    StepShape,
    plan_lengths,
    trim_lengths,
)
from draftproof.engine.economics.compiled import warm_up
from draftproof.engine.economics.confidences import FlatConfidence
from draftproof.engine.economics.costs import CostTable, StepCost
from draftproof.engine.economics.mode import DraftMode
from draftproof.engine.economics.outcomes import evidence_of
from draftproof.engine.economics.probes import Probes
from draftproof.engine.economics.survey import Survey

LONGEST_SLEEP = 48
"""Steps after which a plan not to draft is thought over in any case: costs may have changed."""
MOST_PATIENCE = 32
"""Tokens that a new sequence waits for its first trial at most."""
SHORT_REST = 32
"""Steps without a draft, trials apart, after which nothing dear is done for the sake of drafts to come."""
TOKENS_TO_COME = 256
"""Most tokens that an output is expected to have, whatever its limit."""
FILL_ROWS = 256
"""Rows of the pass whose time tells what computing a prompt costs."""
HOLD = 3
"""While a sequence alone is drafted, so many steps go on as the last one, and are learned from together: thinking costs a
twentieth of a small model's drafted step. Not after a draft that was of no use, until the sequence is known."""
KNOWN = 8.0
"""Drafts, as remembered, that make a sequence, or the drafter, known."""
WORTH_CUTTING_S = 4e-4
"""Seconds that the rows of a draft must cost, for its tail to be cut off where the drafter is unsure: some five times what
thinking about it takes."""
IDLE_LOOK = 16
"""While the plan is not to draft, one step in so many is compared with the cost table: nothing new is to be expected."""


@dataclass(frozen=True)
class DraftWish:
    """A sequence that decodes in this step.

    Attributes:
        acceptance: the sequence's.
        room: most draft tokens of use to it, >= 0: what its limits leave.
        context: its tokens.
        backlog: its tokens that the drafter's context still lacks, if drafting it would have to make up for them.
    """

    acceptance: RequestAcceptance
    room: int
    context: int
    backlog: int = 0


class Economist:
    """Chooses draft lengths. Deterministic: the same observations and costs give the same choices.

    Args:
        mode: how drafting is asked for.
        costs: this machine's; corrected in place by `observe_step`.
        max_draft_tokens: most the drafter can, >= 0.
    """

    def __init__(self, mode: DraftMode, costs: CostTable, max_draft_tokens: int) -> None:
        self.mode = mode
        self.costs = costs
        self.max_draft_tokens = max_draft_tokens
        self._engine = EngineAcceptance(max_draft_tokens)
        self._confidence = ConfidenceMap()
        self._probes = Probes()
        self._survey = Survey()
        if mode.kind == "auto":
            warm_up()
        self._patience = FIRST_WAIT
        self._sleep = 0
        self._slept = 0
        self._undrafted = 0
        self._gain_s = 0.0
        self._cold = False
        self._warm = False
        self._held: list[int] = []
        self._unlearned: list[DraftOutcome] = []
        self._sleepers: list[RequestAcceptance] = []
        self._sleep_rows = (0, True)

    def new_request(self) -> RequestAcceptance:
        """What to keep with a new sequence. Where trials have failed lately, whoever's, its own first one comes later."""
        return RequestAcceptance(self.max_draft_tokens, self._patience)

    def rests(self, requests: list[RequestAcceptance], other_rows: int, refilled: bool = True) -> bool:
        """Whether nobody drafts in this step, found without thinking: `plan` need not be asked.

        True where the last plan was not to draft and nothing has happened since that could change it. Call it once a step.

        Args:
            requests: of all sequences that decode in this step.
            other_rows, refilled: as for `plan`.
        """
        if self.mode.kind == "fixed":
            return not min(self.mode.length, self.max_draft_tokens)
        if self.mode.kind == "off" or not self.max_draft_tokens:
            return True
        return self._still_asleep(requests, (other_rows, refilled))

    @property
    def idle(self) -> bool:
        """Whether drafting has not paid of late. Trials go on, and end it."""
        return self.mode.kind == "auto" and self._undrafted + self._slept >= SHORT_REST

    def fills(self, missing: int, to_come: int) -> bool:
        """Whether part of a cached prefix is to be computed anew, so that its sequence can be drafted.

        Yes if that is going to be earned back; or, seldom, without such hope: where every prompt is a long known one, nobody
        could be tried otherwise.

        Args:
            missing: tokens that the drafter's context lacks.
            to_come: most tokens that the output may have.
        """
        if self.mode.kind != "auto":
            return self.mode.kind == "fixed"
        cost = missing * self.costs.target.one(FILL_ROWS, 1) / FILL_ROWS
        if not self.idle and self._gain_s * min(to_come, TOKENS_TO_COME) > cost:
            return True
        return self._probes.scout(cost)

    def unattended(self, sequences: int) -> None:
        """A step in which none of so many sequences could be drafted, for want of the drafter's context."""
        if self.mode.kind == "auto":
            self._probes.save(self.costs.target.one(sequences, sequences))

    def watches(self, draft_slots: int) -> bool:
        """Whether `observe_step` will look at a step with so many draft slots."""
        if self.mode.kind != "auto" or self._unlearned:
            return False
        return bool(draft_slots) or not self._sleep % IDLE_LOOK

    def plan(self, wishes: Sequence[DraftWish], other_rows: int, refilled: bool = True) -> list[int]:
        """Draft length for each decoding sequence, before the drafter runs.

        Args:
            wishes: all sequences that decode in this step, drafting or not.
            other_rows: prefill rows in the same pass.
            refilled: whether others wait to take the place of a sequence that ends. It decides what is made large: the
                tokens of all together, or the speed of each; see `best_lengths`.
        """
        most = self.max_draft_tokens
        if self.mode.kind == "fixed":
            most = min(most, self.mode.length)
        if self.mode.kind != "auto" or not wishes or not most:
            return [max(0, min(most, wish.room)) if self.mode.kind == "fixed" else 0 for wish in wishes]
        requests = [wish.acceptance for wish in wishes]
        if self._still_asleep(requests, (other_rows, refilled)):
            return [0] * len(wishes)
        room = [min(most, max(0, wish.room)) for wish in wishes]
        if self._goes_on(requests, (other_rows, refilled)):
            self._survey.count()
            return [min(self._held[0], room[0])]
        self._learn_late()
        for request in requests:
            request.probing = False  # the drafter may have had nothing to propose in a trial
        choice, chances, shape = self._choice(wishes, room, other_rows, refilled)
        chosen: list[int] = choice.lengths.tolist()
        lengths = self._survey.step(chosen, room)
        if lengths is not chosen:
            return lengths  # a survey: no trials beside it
        if 0 in lengths:
            first: list[float] = chances[:, 0].tolist()
            for index in self._probes.choose(requests, first, lengths, room, choice.rate, shape, self.costs):
                lengths[index] = 1
                requests[index].probing = True
        for request, length, wish in zip(requests, lengths, wishes, strict=True):
            if not length and wish.room > 0:
                request.idle += 1
        self._warm = any(lengths) and not any(request.probing for request in requests)
        self._undrafted = 0 if self._warm else self._undrafted + 1
        if self._warm and (refilled or len(lengths) == 1):
            undrafted_s = self.costs.target.one(len(lengths) + other_rows, len(lengths))
            self._gain_s = max(0.0, undrafted_s - len(lengths) / choice.rate)
        if len(lengths) == 1 and self._warm:
            self._held, self._sleep_rows = lengths, (other_rows, refilled)
        else:
            self._held = []
        if not any(lengths):
            self._cold = True
            if all(room):
                self._sleepers, self._sleep_rows = requests, (other_rows, refilled)
                self._sleep = min(LONGEST_SLEEP, self._probes.quiet(requests))
        return lengths

    def _goes_on(self, requests: list[RequestAcceptance], step: tuple[int, bool]) -> bool:
        """Whether this step is to be like the last: see `HOLD`."""
        late = self._unlearned
        return (
            bool(late)
            and len(requests) == 1
            and late[-1].acceptance is requests[0]
            and step == self._sleep_rows
        )

    def _learn_late(self) -> None:
        late, self._unlearned = self._unlearned, []
        if late:
            self._learn(late)

    def _choice(
        self, wishes: Sequence[DraftWish], room: list[int], other_rows: int, refilled: bool
    ) -> tuple[Choice, np.ndarray, StepShape]:
        """The lengths that pay, with the chances by position and the step they rest on."""
        requests = [wish.acceptance for wish in wishes]
        numbers = np.array(
            [
                [0 if request.given_up else most for request, most in zip(requests, room, strict=True)],
                [wish.context for wish in wishes],
                [wish.backlog for wish in wishes],
            ],
            np.float64,
        )
        shape = StepShape(
            len(wishes),
            other_rows,
            numbers[1],
            numbers[2],
            refilled,
            self._warm and self._engine.drafts >= KNOWN,
        )
        counts = np.array([request.counts for request in requests])
        choice, chances = plan_lengths(
            counts, self._engine.means, WEIGHTS, numbers[0], self._confidence.skill, shape, self.costs
        )
        self._engine.note(requests, chances)
        return choice, chances, shape

    def _still_asleep(self, requests: list[RequestAcceptance], step: tuple[int, bool]) -> bool:
        """Whether the last plan was not to draft and nothing has happened since that could change it.

        Thinking costs time too: half a percent of a small model's step.
        """
        if self._sleep > 0 and requests == self._sleepers and step == self._sleep_rows:
            self._sleep -= 1
            self._slept += 1
            return True
        # Counting is left for when somebody wants to know.
        self._undrafted += self._slept
        self._probes.earn(self._slept)
        for request in self._sleepers:
            request.idle += self._slept
        self._sleep, self._slept, self._sleepers = 0, 0, []
        return False

    def trim(
        self,
        wishes: Sequence[DraftWish],
        planned: Sequence[int],
        confidences: Sequence[Sequence[float] | None],
        other_rows: int,
        refilled: bool = True,
    ) -> list[int]:
        """How many of its draft tokens to verify, for each sequence, now that the drafter has said how sure it is.

        Args:
            wishes: as given to `plan`.
            planned: draft tokens that each sequence really has (what `plan` said, or fewer).
            confidences: the drafter's probability of each of its tokens; None where it has none.
            other_rows, refilled: as given to `plan`.

        Returns:
            Lengths, each at most the planned one; a trial's draft is always verified.
        """
        lengths = list(planned)
        if self.mode.kind != "auto" or not self._confidence.informed or not any(planned):
            return lengths
        if len(lengths) == 1 and self._little_to_cut(1 + lengths[0] + other_rows):
            return lengths
        kept = trim_lengths(
            planned,
            FlatConfidence.of(confidences, self.max_draft_tokens),
            self._engine.of([wish.acceptance for wish in wishes]),
            self._confidence.weights,
            _shape(wishes, other_rows, refilled),
            self.costs,
        )
        return [
            length if wish.acceptance.probing else short
            for wish, length, short in zip(wishes, lengths, kept, strict=True)
        ]

    def _little_to_cut(self, rows: int) -> bool:
        """Whether rows after the second cost a sequence alone too little to think about."""
        target = self.costs.target
        return target.one(rows, 1) - target.one(2, 1) < WORTH_CUTTING_S

    def observe(self, seen: Sequence[DraftOutcome]) -> None:
        """Learn from the drafts of a step. Sequences without a draft need not be named."""
        seen = [outcome for outcome in seen if outcome.verified > 0 or outcome.confidences]
        if self.mode.kind != "auto" or not seen:
            return
        self._sleep = 0
        if self._held and len(seen) == 1 and len(self._unlearned) < HOLD and _may_wait(seen[0]):
            self._unlearned.append(seen[0])
            seen[0].acceptance.settle(seen[0].accepted > 0)
            return
        late, self._unlearned = self._unlearned, []
        if late and late[-1].acceptance is not seen[0].acceptance:
            self._learn(late)
            late = []
        self._learn([*late, *seen])
        for outcome in seen:
            if outcome.acceptance.probing:
                self._patience = FIRST_WAIT if outcome.accepted else min(MOST_PATIENCE, 2 * self._patience)
                self._probes.learn(outcome.acceptance, outcome.accepted > 0)
            outcome.acceptance.settle(outcome.accepted > 0)

    def _learn(self, seen: Sequence[DraftOutcome]) -> None:
        """From the drafts of a step, one a sequence, or from several of one sequence, which count as one long draft."""
        requests = [outcome.acceptance for outcome in seen]
        one = len(seen) > 1 and requests[0] is requests[1]
        chances = self._engine.of(requests[:1] if one else requests)
        evidence = evidence_of(seen, np.repeat(chances, len(seen), 0) if one else chances, self._confidence)
        self._confidence.observe(evidence.told)
        if one:
            self._engine.observe(
                requests[:1], chances, evidence.tried.sum(0)[None], evidence.accepted.sum(0)[None], len(seen)
            )
        else:
            self._engine.observe(requests, chances, evidence.tried, evidence.accepted)

    def observe_step(self, step: StepCost) -> None:
        """Correct the cost table by what a step took.

        The first step that drafts after some that did not finds weights and code in no cache. It is twice as dear as those that
        follow, and would make drafting look dearer than it is.
        """
        if not self.watches(step.draft_slots):
            return
        if step.draft_slots and self._cold:
            self._cold = False
            self.costs.observe_cold_step(step)
            return
        self._survey.learn(self.costs.observe_step(step))

    def acceptance_by_position(self) -> list[float]:
        """The engine's estimate of P(draft j accepted | those before it accepted), j = 1, 2, ..."""
        return [float(mean) for mean in self._engine.means]


def _may_wait(outcome: DraftOutcome) -> bool:
    """Whether a draft may be learned from later, with those after it."""
    return outcome.accepted > 0 or float(outcome.acceptance.counts[0, 0]) >= KNOWN


def _shape(wishes: Sequence[DraftWish], other_rows: int, refilled: bool) -> StepShape:
    numbers = np.array([[wish.context for wish in wishes], [wish.backlog for wish in wishes]], np.float64)
    return StepShape(len(wishes), other_rows, numbers[0], numbers[1], refilled)
