"""How likely draft tokens are to be accepted: by position, for a request and for the whole engine.

The number estimated for position j is P(draft j accepted | the drafts before it accepted). Counts are forgotten
exponentially. A request's estimate is the mean of a Beta distribution whose prior is the engine's mean at that
position, its odds moved by how the request has fared so far at all other positions together; the engine's is shrunk to
the position before, the first one to `START`. What a draft did at a position counts once: moving the odds by it too would
end drafting after two failures in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.engine.economics.compiled import estimates_of, learn

START = 0.5
"""Acceptance assumed of an unknown drafter."""
START_WEIGHT = 1.5
"""In pseudo counts: small, so that a useless drafter is known for one after about three drafts."""
REQUEST_WEIGHT = 12.0
"""Pseudo counts of the engine's mean in a request's estimate."""
POOL_WEIGHT = 12.0
"""Pseudo counts that hold a request's odds at the engine's. With a third of both weights, chance runs of failures end drafting
too soon, which costs 1 to 3% in simulations of a fast target on which drafts pay by 10%; with twice as much, texts on which they
do not pay are found out too late."""
WEIGHTS = (REQUEST_WEIGHT, POOL_WEIGHT)
REQUEST_MEMORY = 0.95
"""What a request's counts keep at each of its drafts: about 20 drafts are remembered."""
IDLE_MEMORY = 0.98
"""What they keep at each token written without a draft: the text may have moved on."""
TURN = 8.0
ALARM = 6.0
"""A turn for the worse: odds so many times lower, and the evidence asked for. See `EngineAcceptance._after_alarms`."""
FIRST_WAIT = 4
LONGEST_WAIT = 48
"""Tokens between two trials of a sequence that is not drafted: doubled with each that fails. What trials may cost
(`probes.py`) can make it more."""
ENGINE_MEMORY = 0.995
"""What the engine's counts keep at each draft of any request: about 200 are remembered."""


class RequestAcceptance:
    """What is known of one sequence's drafts; made with the sequence, changed only by the `Economist`.

    Attributes:
        counts: float64 ``[2, max_draft_tokens]``: drafts tried and drafts accepted, by position.
        idle: tokens written since the last draft.
        wait: tokens to be written without a draft before the next trial.
        probing: the draft under way is a trial.
        hot: the last trial worked, so the next step is another.
        given_up: the last trial failed. Whatever the counts say (they are forgotten, and the engine's mean takes over),
            drafting resumes only after one that works.
        alarm: evidence that the text has turned for the worse.
    """

    __slots__ = ("alarm", "counts", "given_up", "hot", "idle", "probing", "wait")

    def __init__(self, max_draft_tokens: int, wait: int = FIRST_WAIT) -> None:
        self.counts = np.zeros((2, max_draft_tokens))
        self.idle = 0
        self.wait = wait
        self.probing = False
        self.hot = False
        self.alarm = 0.0
        self.given_up = False

    def due(self) -> bool:
        """Whether a trial is due, now that the text goes on without a draft."""
        return self.hot or self.idle >= self.wait

    def settle(self, accepted: bool) -> None:
        """A draft has been verified: when to try again should drafting be given up."""
        if not self.probing:
            self.wait = FIRST_WAIT
        elif not accepted:
            self.wait = min(LONGEST_WAIT, 2 * self.wait)
        else:
            self.wait = FIRST_WAIT
        self.hot = self.probing and accepted
        self.given_up = self.probing and not accepted
        self.idle = 0
        self.probing = False


@dataclass(frozen=True)
class DraftOutcome:
    """What became of one sequence's draft.

    Attributes:
        acceptance: the sequence's.
        confidences: the drafter's for all tokens it proposed, verified or not; None when it has none.
        verified: draft tokens the target saw.
        accepted: of these, how many were kept.
    """

    acceptance: RequestAcceptance
    confidences: Sequence[float] | None
    verified: int
    accepted: int


class EngineAcceptance:
    """What is known of the drafter over all requests."""

    def __init__(self, max_draft_tokens: int) -> None:
        self.counts = np.zeros((2, max_draft_tokens))
        self._means: np.ndarray | None = None
        self._asked: list[RequestAcceptance] = []
        self._told = np.empty((0, max_draft_tokens))

    @property
    def means(self) -> np.ndarray:
        """The engine's estimate by position, float64 ``[max_draft_tokens]``."""
        if self._means is None:
            before, means = START, []
            for tried, accepted in self.counts.T.tolist():
                before = (accepted + START_WEIGHT * before) / (tried + START_WEIGHT)
                means.append(before)
            self._means = np.array(means)
        return self._means

    @property
    def drafts(self) -> float:
        """Drafts remembered."""
        return float(self.counts[0, 0])

    def of(self, requests: Sequence[RequestAcceptance]) -> np.ndarray:
        """Estimates for these requests, float64 ``[n, max_draft_tokens]``; not to be changed."""
        if self._asked != requests:  # a step asks when it plans, and again when it learns
            counts = np.array([request.counts for request in requests])
            self.note(requests, estimates_of(counts, self.means, *WEIGHTS))
        return self._told

    def note(self, requests: Sequence[RequestAcceptance], told: np.ndarray) -> None:
        """These are the estimates for these requests: for whoever asks next."""
        self._told, self._asked = told, list(requests)

    def of_reference(self, requests: Sequence[RequestAcceptance]) -> np.ndarray:
        """`of` in plain numpy."""
        counts = np.array([request.counts for request in requests])
        tried, accepted = counts[:, 0], counts[:, 1]
        means = self.means
        # Of the other positions: what was tried at the position itself counts below.
        expected = (tried @ means)[:, None] - tried * means
        total, kept = tried.sum(1, keepdims=True) - tried, accepted.sum(1, keepdims=True) - accepted
        odds = (kept + POOL_WEIGHT) / (expected + POOL_WEIGHT)
        odds *= (total - expected + POOL_WEIGHT) / (total - kept + POOL_WEIGHT)
        moved = means * odds
        prior = moved / (1.0 - means + moved)
        return (accepted + REQUEST_WEIGHT * prior) / (tried + REQUEST_WEIGHT)

    def observe(
        self,
        requests: Sequence[RequestAcceptance],
        chances: np.ndarray,
        tried: np.ndarray,
        accepted: np.ndarray,
        drafts: int = 1,
    ) -> None:
        """Count the drafts of a step, one a request; or `drafts` of each together.

        Args:
            requests: whose drafts.
            chances: what was estimated, ``[n, max_draft_tokens]``.
            tried: how far each draft was tried, by position, ``[n, max_draft_tokens]``; fractions where only expected.
            accepted: the same of what was accepted.
        """
        keep = np.array([REQUEST_MEMORY**drafts * IDLE_MEMORY**request.idle for request in requests])
        counts = np.array([request.counts for request in requests])
        alarms = np.array([request.alarm for request in requests])
        learn(counts, keep, alarms, chances, tried, accepted, TURN, ALARM, REQUEST_WEIGHT)
        for request, row, alarm in zip(requests, counts, alarms.tolist(), strict=True):
            request.counts, request.alarm = row, alarm
        self.counts *= ENGINE_MEMORY ** (drafts * len(requests))
        self.counts[0] += tried.sum(0)
        self.counts[1] += accepted.sum(0)
        self._means, self._asked = None, []

    @staticmethod
    def learn_reference(
        requests: Sequence[RequestAcceptance], chances: np.ndarray, tried: np.ndarray, accepted: np.ndarray
    ) -> None:
        """The requests' part of `observe` in plain numpy."""
        keep = np.array([REQUEST_MEMORY * IDLE_MEMORY**request.idle for request in requests])
        news = np.stack([tried, accepted], axis=1)
        counts = np.array([request.counts for request in requests]) * keep[:, None, None] + news
        EngineAcceptance._after_alarms(requests, counts, chances, tried, accepted)
        for request, row in zip(requests, counts, strict=True):
            request.counts = row

    @staticmethod
    def _after_alarms(
        requests: Sequence[RequestAcceptance],
        counts: np.ndarray,
        chances: np.ndarray,
        tried: np.ndarray,
        accepted: np.ndarray,
    ) -> None:
        """Where a text has turned for the worse, believe it: `counts` change so that estimates become what was found.

        A running sum of log likelihood ratios, of odds `TURN` times lower against the estimate, kept from falling
        below 0, gives the alarm (Page 1954, *Continuous inspection schemes*).
        """
        worse = chances / (TURN - (TURN - 1.0) * chances)
        gain = accepted * np.log(worse / chances) + (tried - accepted) * np.log(
            (1.0 - worse) / (1.0 - chances)
        )
        for index, (request, more) in enumerate(zip(requests, gain.sum(1).tolist(), strict=True)):
            request.alarm = max(0.0, request.alarm + more)
            if request.alarm > ALARM:
                request.alarm = 0.0
                counts[index, 0] = REQUEST_WEIGHT
                counts[index, 1] = REQUEST_WEIGHT * np.maximum(0.0, 2.0 * worse[index] - chances[index])
