"""Prometheus's forms of plain numbers: names with our prefix, units by the names' ends."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ..histogram import HistogramData

K = TypeVar("K", bound=str)

_PREFIX = "espalier_"


def gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, what, value=value)


def counter(name: str, what: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, what, value=value)


def counters(name: str, what: str, label: str, values: Mapping[K, float]) -> CounterMetricFamily:
    """One for each value of `label`: of a fixed set, never of what clients choose."""
    family = CounterMetricFamily(_PREFIX + name, what, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family


def histogram(name: str, what: str, data: HistogramData) -> HistogramMetricFamily:
    return HistogramMetricFamily(_PREFIX + name, what, buckets=_buckets(data), sum_value=data.sum)


def histograms(
    name: str, what: str, label: str, values: Mapping[K, HistogramData]
) -> HistogramMetricFamily:
    """One for each value of `label`, as in `counters`."""
    family = HistogramMetricFamily(_PREFIX + name, what, labels=(label,))
    for value, data in values.items():
        family.add_metric((value,), _buckets(data), data.sum)
    return family


def _buckets(data: HistogramData) -> list[tuple[str, float]]:
    """Each counts those below it too."""
    names = [*map(str, data.bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(data.counts)), strict=True))
