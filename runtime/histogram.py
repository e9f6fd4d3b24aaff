"""Values counted by bucket: cheap to add to, and plain numbers to send; knows no Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistogramData:
    """What a histogram held at one time.

    bounds: the upper ends of the buckets, inclusive. counts: of each bucket alone, and last of
    all that is above every bound. sum: of all values.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    sum: float = 0.0


class Histogram:
    """Cheap enough for every token; for one thread."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `value`, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    @property
    def data(self) -> HistogramData:
        return HistogramData(self._bounds, tuple(self._counts), self._sum)
