"""Trying again where drafting has been given up, at a bounded price."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.engine.economics.acceptance import LONGEST_WAIT, RequestAcceptance
from draftproof.engine.economics.choice import StepShape
from draftproof.engine.economics.compiled import losses_of
from draftproof.engine.economics.costs import CostTable

BUDGET = 0.0035
"""Share of the time of undrafted steps that trials may be expected to lose."""
GRANT = 0.3
"""Credit to begin with, in passes, where an unknown drafter would not pay and so is never met otherwise."""
GROUP = 8
"""Most trials in one step."""
LEAST_QUIET = 6
"""Steps without a trial after one in which none was called for: thinking about it costs time too."""
MOST_DEBT = 0.5
"""Trials right after one that worked may go into debt; in passes, how far."""
FULL_GAIN = 0.3
"""Where even perfect drafts would gain less than this, the budget shrinks in proportion."""
TRIAL_MEMORY = 0.95
"""What is kept of earlier trials at each new one: about 20 are remembered."""
BELIEF = 1.0
"""Trials hoped to work that stand for the belief that as many do as are hoped to."""


class Probes:
    """Lends time to trials: each undrafted step earns a little, each trial spends what it is expected to lose.

    A sequence is tried because its drafts failed, so that its trials work less often than its estimate says, which is drawn to
    that of all drafts. How much less is kept here, and trials cost what they really do.
    """

    def __init__(self) -> None:
        self.credit = 0.0
        self._begun = False
        self._pause = 0
        self._earned = 0.0
        self._refund = 0.0
        self._saved = 0.0
        self._hoped = self._worked = BELIEF
        self._under_way: dict[int, float] = {}

    def earn(self, steps: int = 1) -> None:
        """Steps without a trial, like the last one."""
        self.credit += steps * self._earned
        self._saved += steps * self._earned
        self._pause -= steps

    def save(self, pass_s: float) -> None:
        """A step in which nobody could be tried has earned towards a `scout`."""
        self._saved += BUDGET * pass_s

    def scout(self, seconds: float) -> bool:
        """Whether to spend so much on making a sequence fit to be tried. For that, steps earn as much as for trials."""
        if self._saved < seconds:
            return False
        self._saved = 0.0
        return True

    @property
    def luck(self) -> float:
        """Trials that worked over trials that were hoped to, of late; at most 1. Those right after one that worked aside."""
        return min(1.0, self._worked / self._hoped)

    def learn(self, request: RequestAcceptance, accepted: bool) -> None:
        """What became of the trial of a sequence. One that works brings a token that had hardly been hoped for."""
        if accepted:
            self.credit += self._refund
        hoped = self._under_way.pop(id(request), None)
        if hoped is not None:
            keep = (1.0 - TRIAL_MEMORY) * BELIEF
            self._hoped = TRIAL_MEMORY * self._hoped + keep + hoped
            self._worked = TRIAL_MEMORY * self._worked + keep + accepted

    def quiet(self, requests: Sequence[RequestAcceptance]) -> int:
        """For how many steps there will be no trial if none of these sequences drafts."""
        if any(request.hot for request in requests):
            return 0
        return max(LEAST_QUIET, self._pause, min(request.wait - request.idle for request in requests))

    def choose(
        self,
        requests: Sequence[RequestAcceptance],
        first_chances: Sequence[float],
        lengths: Sequence[int],
        room: Sequence[int],
        rate: float,
        shape: StepShape,
        costs: CostTable,
    ) -> list[int]:
        """Which undrafted sequences get one draft token in this step; those after a trial that worked come first.

        Args:
            requests: all sequences of the step.
            first_chances: of the first draft of each, as estimated.
            lengths: chosen draft lengths.
            room: most draft tokens of use.
            rate: tokens per second, the price of time.
            shape, costs: the step and the machine.
        """
        cold = [index for index, length in enumerate(lengths) if not length and room[index] > 0]
        if not cold:
            return []
        drafts = sum(lengths)
        pass_s = costs.target.one(shape.sequences + drafts + shape.other_rows, shape.sequences)
        if not self._begun:
            self._begun = True
            self.credit = GRANT * pass_s if not drafts else 0.0
        self._earned = BUDGET * pass_s * len(cold) / shape.sequences
        self.earn()
        due = [index for index in cold if requests[index].due()]
        if not due or (self._pause > 0 and not any(requests[index].hot for index in due)):
            return []
        due.sort(key=lambda index: (not requests[index].hot, requests[index].wait - requests[index].idle))
        token_s = shape.worth_of_one / rate
        luck = self.luck
        chances = [
            chance if request.hot else chance * luck
            for chance, request in zip(first_chances, requests, strict=True)
        ]
        loss = losses(due, chances, lengths, room, token_s, shape, costs).tolist()
        if not loss:  # nothing to be found out at this size of batch
            self._pause = LONGEST_WAIT
            return []
        # Together or not at all: a pass of the drafter costs little more for several than for one.
        group = min(len(due), GROUP)
        dear = max(loss[:group])
        if dear <= self.credit:
            taken = group
        else:
            hot = sum(requests[index].hot for index in due)
            taken = hot if self.credit > -MOST_DEBT * pass_s else 0
        if taken:
            self._under_way = {
                id(requests[index]): first_chances[index] for index in due[:taken] if not requests[index].hot
            }
            self.credit -= loss[taken - 1]
            self._refund = min(loss[taken - 1] / taken, token_s)
        else:
            # Nothing is saved up beyond the next trial.
            self.credit = min(self.credit, max(dear, GRANT * pass_s))
            # Steps that cannot earn what is missing need not ask again.
            self._pause = 1 + int(min(LONGEST_WAIT, (dear - self.credit) / self._earned))
        return due[:taken]


def losses(
    due: Sequence[int],
    first_chances: Sequence[float],
    lengths: Sequence[int],
    room: Sequence[int],
    token_s: float,
    shape: StepShape,
    costs: CostTable,
) -> np.ndarray:
    """Seconds that the first 1, 2, ... trials are expected to lose, float64; empty where even perfect drafts gain nothing.

    A trial costs more where perfect drafts would gain little: see `FULL_GAIN`.

    Args:
        due: the sequences to be tried, in this order.
        token_s: what a token is worth.
        first_chances, lengths, room, shape, costs: as for `Probes.choose`.
    """
    drafts, drafting = sum(lengths), sum(length > 0 for length in lengths)
    tried = np.array([[first_chances[index] for index in due], shape.backlog[due]])
    return losses_of(
        tried[0],
        tried[1],
        drafts,
        drafting,
        shape.sequences + drafts + shape.other_rows,
        shape.sequences,
        max(room[index] for index in due),
        token_s,
        0.0 if drafts else costs.cold_s,
        costs.target.table,
        costs.drafter.table,
        costs.extend.table,
        FULL_GAIN,
    )


def losses_reference(
    due: Sequence[int],
    first_chances: Sequence[float],
    lengths: Sequence[int],
    room: Sequence[int],
    token_s: float,
    shape: StepShape,
    costs: CostTable,
) -> np.ndarray:
    """`losses` in plain numpy."""
    n, drafts, drafting = shape.sequences, sum(lengths), sum(length > 0 for length in lengths)
    each = np.arange(max(room[index] for index in due) + 1)
    seconds = costs.target.at(n * (1 + each), n) + costs.drafter.at(n * each, n)
    seconds[1:] += costs.extend.at(n * (1 + each[1:]))
    rates = (1 + each) / seconds
    gain = float(rates.max() / rates[0]) - 1.0
    if gain <= 1e-3:
        return np.empty(0)
    rows, more, chosen = n + drafts + shape.other_rows, np.arange(1, len(due) + 1), list(due)
    seconds = (
        costs.target.at(rows + more, n)
        - costs.target.one(rows, n)
        + costs.drafter.at(drafts + more, drafting + more)
        - costs.drafter.one(drafts, drafting)
        + costs.extend.at(np.cumsum(np.maximum(1.0, shape.backlog[chosen])))
        + (0.0 if drafts else costs.cold_s)
    )
    hoped = np.cumsum(np.array(first_chances)[chosen]) * token_s
    loss: np.ndarray = max(1.0, FULL_GAIN / gain) * np.maximum(seconds - hoped, 0.05 * seconds)
    return loss
