"""How many standard deviations data lie from a hypothesis; for tests with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def chi_square_z(counts: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Pearson's chi-square as a standard normal value (Wilson and Hilferty, 1931)."""
    observed, means = np.asarray(counts, dtype=float), np.asarray(expected, dtype=float)
    assert means.min() >= 5, "too few expected in a cell for the approximation"
    freedom = means.size - 1
    statistic = float(np.sum((observed - means) ** 2 / means))
    variance = 2 / (9 * freedom)
    cube_root = math.pow(statistic / freedom, 1 / 3)
    return (cube_root - (1 - variance)) / math.sqrt(variance)


def kolmogorov_distance(values: Floats) -> float:
    """Greatest distance between the values' distribution and uniform (0, 1), times sqrt(n).

    It exceeds 1.95 once in a thousand samples of a uniform distribution.
    """
    ordered = np.sort(values)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    distance = max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1]))
    return float(distance) * math.sqrt(len(ordered))


def correlation_z(first: Floats, second: Floats) -> float:
    """The correlation of independent values has a standard deviation of 1 / sqrt(n)."""
    return float(np.corrcoef(first, second)[0, 1]) * math.sqrt(len(first))
