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
FIT_STEPS = 8
"""Outcomes and steps between two fits, at least."""
FIT_SHARE = 0.5
"""Outcomes between two fits, as a share of those the last one rested on: a fit takes a fifth of a small model's step, and what is
known from many outcomes changes slowly."""
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
        self._inputs[:, 0] = 1.0
        self._accepted = np.zeros(KEPT)
        self._seen = 0
        self._fitted = 0
        self._steps = 0

    @property
    def informed(self) -> bool:
        return self.skill > 0.0

    def chances(self, confidence: np.ndarray, counted: np.ndarray) -> np.ndarray:
        """Acceptance probabilities, any shape: from confidences and from the counts' estimates, both in [0, 1]."""
        constant, slope, trust = self.weights
        return 1.0 / (1.0 + np.exp(-(constant + slope * logit(confidence) + trust * logit(counted))))

    def observe(self, told: np.ndarray) -> None:
        """Outcomes of tokens whose predecessors were accepted, ``[n, 3]``: see `outcomes.Evidence`."""
        count = len(told)
        if not count:
            return
        first = self._seen % KEPT
        if first + count <= KEPT:
            self._keep(slice(first, first + count), told)
        else:
            self._keep((self._seen + np.arange(count)) % KEPT, told)
        self._seen += count
        self._steps += 1
        enough = max(FIT_EVERY, FIT_SHARE * min(self._fitted, KEPT))
        if self._seen - self._fitted >= enough and self._steps >= FIT_STEPS:
            self._fitted, self._steps = self._seen, 0
            self._fit()

    def _keep(self, places: slice | np.ndarray, told: np.ndarray) -> None:
        self._inputs[places, 1:] = told[:, :2]
        self._accepted[places] = told[:, 2]

    def _fit(self) -> None:
        size = min(self._seen, KEPT)
        inputs, accepted = self._inputs[:size], self._accepted[:size]
        weights = _maximum(inputs, accepted, self.weights)
        if weights[1] <= 0.0:
            # Less sure where it is more often right: a fault elsewhere, not to be built on.
            self.weights, self.skill = NEUTRAL.copy(), 0.0
            return
        self.weights = weights
        error = float(((accepted - _chance(inputs, weights)) ** 2).mean())
        without = _maximum(inputs[:, [0, 2]], accepted, NEUTRAL[[0, 2]])
        plain = float(((accepted - _chance(inputs[:, [0, 2]], without)) ** 2).mean())
        # One more weight explains about 1/size of pure noise; several times that is asked for.
        self.skill = min(1.0, max(0.0, 1.0 - error / plain - 4.0 / size)) if plain > 0 else 0.0


def _chance(inputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    chance: np.ndarray = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weights, -30.0, 30.0)))
    return chance


def _fitness(inputs: np.ndarray, accepted: np.ndarray, weights: np.ndarray, neutral: np.ndarray) -> float:
    """Log likelihood, less the ridge."""
    scores = inputs @ weights
    return float(
        (accepted * scores - np.logaddexp(0.0, scores)).sum() - 0.5 * RIDGE * ((weights - neutral) ** 2).sum()
    )


def _maximum(inputs: np.ndarray, accepted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weights of highest penalised likelihood, by Newton steps halved until they climb."""
    size = inputs.shape[1]
    neutral = NEUTRAL[[0, 1, 2] if size == 3 else [0, 2]]
    fitness = _fitness(inputs, accepted, weights, neutral)
    for _ in range(8):
        chance = _chance(inputs, weights)
        slope = inputs.T @ (accepted - chance) - RIDGE * (weights - neutral)
        bend = (inputs * (chance * (1.0 - chance))[:, None]).T @ inputs + RIDGE * np.eye(size)
        move = np.linalg.solve(bend, slope)
        for _ in range(6):
            better = _fitness(inputs, accepted, weights + move, neutral)
            if better >= fitness:
                break
            move *= 0.5
        else:
            break
        weights = weights + move
        if better - fitness < 1e-3:
            break
        fitness = better
    return weights
