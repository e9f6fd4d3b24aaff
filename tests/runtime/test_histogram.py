"""Histograms: every value is in the one bucket that it belongs to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from espalier.runtime.histogram import Histogram

BOUNDS = (0.1, 1.0, 2.5)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.2, 1.0, 2.0, 2.5, 3.0]), st.integers(1, 5))))
def test_buckets(observed: list[tuple[float, int]]) -> None:
    histogram = Histogram(BOUNDS)
    for value, count in observed:
        histogram.observe(value, count)
    data = histogram.data
    below = 0
    for bound, count in zip(data.bounds, data.counts[:-1], strict=True):
        below += count
        assert below == sum(n for value, n in observed if value <= bound)
    assert sum(data.counts) == sum(n for _, n in observed)
    assert abs(data.sum - sum(value * n for value, n in observed)) < 1e-9
