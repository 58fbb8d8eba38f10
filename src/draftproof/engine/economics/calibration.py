"""From a drafter's confidence to the probability that the target accepts.

Logistic regression on two inputs: the drafter's own probability of its token, and what the counts say for the
request and position. It starts as the counts alone and is refitted as outcomes come in, so a drafter whose
confidence says nothing costs nothing (compare Platt 1999, *Probabilistic outputs for support vector machines*).
"""

from __future__ import annotations

import numpy as np

KEPT = 512
"""Latest outcomes that a fit rests on."""
FIT_EVERY = 64
RIDGE = 2.0
"""Pull of the weights to "the counts alone"."""
NEUTRAL = np.array([0.0, 0.0, 1.0])


def logit(chance: np.ndarray) -> np.ndarray:
    clipped = np.clip(chance, 1e-3, 1.0 - 1e-3)
    return np.log(clipped / (1.0 - clipped))


class ConfidenceMap:
    """One for the engine. Attributes: `weights` of (1, logit confidence, logit counts); `skill` in [0, 1]: by what
    share the confidence lowers the mean squared error of the prediction."""

    def __init__(self) -> None:
        self.weights = NEUTRAL.copy()
        self.skill = 0.0
        self._inputs = np.zeros((KEPT, 3))
        self._accepted = np.zeros(KEPT)
        self._seen = 0
        self._fitted = 0

    @property
    def informed(self) -> bool:
        return self.skill > 0.0

    def chances(self, confidence: np.ndarray, counted: np.ndarray) -> np.ndarray:
        """Acceptance probabilities, any shape: from confidences and from the counts' estimates, both in [0, 1]."""
        constant, slope, trust = self.weights
        return 1.0 / (1.0 + np.exp(-(constant + slope * logit(confidence) + trust * logit(counted))))

    def observe(self, confidence: np.ndarray, counted: np.ndarray, accepted: np.ndarray) -> None:
        """Outcomes of tokens whose predecessors were accepted, all ``[n]``."""
        count = len(accepted)
        if not count:
            return
        places = (self._seen + np.arange(count)) % KEPT
        self._inputs[places, 0] = 1.0
        self._inputs[places, 1] = logit(confidence)
        self._inputs[places, 2] = logit(counted)
        self._accepted[places] = accepted
        self._seen += count
        if self._seen - self._fitted >= FIT_EVERY:
            self._fitted = self._seen
            self._fit()

    def _fit(self) -> None:
        size = min(self._seen, KEPT)
        inputs, accepted = self._inputs[:size], self._accepted[:size]
        weights = self.weights.copy()
        for _ in range(4):  # Newton steps on the penalised likelihood
            chance = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weights, -30, 30)))
            slope = inputs.T @ (accepted - chance) - RIDGE * (weights - NEUTRAL)
            bend = (inputs * (chance * (1.0 - chance))[:, None]).T @ inputs + RIDGE * np.eye(3)
            weights = np.clip(weights + np.linalg.solve(bend, slope), -8.0, 8.0)
        # A drafter that is less sure where it is more often right would be a fault elsewhere: do not build on it.
        weights[1] = max(0.0, weights[1])
        self.weights = weights
        chance = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        counted = 1.0 / (1.0 + np.exp(-inputs[:, 2]))
        plain = float(((accepted - counted) ** 2).mean())
        better = 1.0 - float(((accepted - chance) ** 2).mean()) / plain if plain > 0 else 0.0
        # Three fitted weights explain about this much of pure noise.
        self.skill = min(1.0, max(0.0, better - 4.0 / size)) if weights[1] > 0 else 0.0
