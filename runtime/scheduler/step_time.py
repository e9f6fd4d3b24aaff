"""How long steps take, learnt from those that have run; knows no requests and no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from .step import StepRow

Floats = npt.NDArray[np.float64]

_MEMORY = 0.99  # what a step counts for, of what the next one counts for
_MIN_STEPS = 8


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes: new tokens, and for each the positions that it attends to."""

    tokens: int = 0
    positions: int = 0

    @classmethod
    def of(cls, rows: Iterable[StepRow]) -> StepWork:
        work = cls()
        for row in rows:
            work = work.plus(row.start, row.num_new)
        return work

    def plus(self, start: int, num_new: int) -> StepWork:
        """With a row that computes positions [start, start + num_new)."""
        positions = num_new * start + num_new * (num_new + 1) // 2
        return StepWork(self.tokens + num_new, self.positions + positions)


class StepTimeModel:
    """seconds = base + per_token * tokens + per_position * positions, none of them negative.

    Least squares over all observed steps, of which old ones fade.
    """

    def __init__(self) -> None:
        self._gram: Floats = np.zeros((3, 3))
        self._moment: Floats = np.zeros(3)
        self._weights: Floats | None = None
        self._num_steps = 0

    @property
    def is_ready(self) -> bool:
        """Whether enough has been observed to predict anything."""
        return self._num_steps >= _MIN_STEPS

    def observe(self, work: StepWork, seconds: float) -> None:
        features = _features(work)
        self._gram = _MEMORY * self._gram + np.outer(features, features)
        self._moment = _MEMORY * self._moment + features * seconds
        self._num_steps += 1
        self._weights = None

    def predict(self, work: StepWork) -> float:
        """Seconds that a step of this work takes. Only when it is ready."""
        return float(self._fitted() @ _features(work))

    def tokens_within(self, seconds: float, start: int, most: int) -> int:
        """How many tokens from position `start` on add at most `seconds` to a step."""
        fewest, too_many = 0, most + 1
        while too_many - fewest > 1:
            middle = (fewest + too_many) // 2
            if self.predict(StepWork().plus(start, middle)) - self.predict(StepWork()) <= seconds:
                fewest = middle
            else:
                too_many = middle
        return fewest

    def _fitted(self) -> Floats:
        assert self.is_ready, f"only {self._num_steps} steps observed"
        if self._weights is None:
            self._weights = _non_negative_least_squares(self._gram, self._moment)
        return self._weights


def _features(work: StepWork) -> Floats:
    return np.array([1.0, work.tokens / 1e2, work.positions / 1e5])  # to be comparable


def _solve(matrix: Floats, vector: Floats) -> Floats:
    return np.asarray(np.linalg.solve(matrix, vector), np.float64)


def _non_negative_least_squares(gram: Floats, moment: Floats) -> Floats:
    """Minimises x'Gx - 2x'm over x >= 0, by trying every set of features: there are seven."""
    best, best_value = np.zeros(3), 0.0
    tiny = 1e-9 * np.trace(gram) * np.eye(3)  # steps that are all alike leave G singular
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            index = np.array(chosen)
            part = _solve((gram + tiny)[np.ix_(index, index)], moment[index])
            value = float(part @ gram[np.ix_(index, index)] @ part - 2 * part @ moment[index])
            if (part >= 0).all() and value < best_value:
                best, best_value = np.zeros(3), value
                best[index] = part
    return best
