"""What the server measures of its requests, in Prometheus's text form; SGLang's names.

A choice of a request counts as one request. What the scheduler holds is not kept here: its
`SchedulerStats` are rendered as they are given.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..messages import FinishKind, FinishReason, Usage
from ..scheduler.stats import SchedulerStats

_PREFIX = "espalier:"

_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100)
_PER_TOKEN_S = (0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 5)
_E2E_S = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100, 200, 400, 800)


class Histogram:
    """Seconds by bucket. Cheap enough for every token, for use on one thread."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds  # upper ones, inclusive
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, what: str) -> HistogramMetricFamily:
        """In Prometheus's form: each bucket counts those below it too."""
        names = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        return HistogramMetricFamily(f"{_PREFIX}{name}", what, buckets=buckets, sum_value=self._sum)


class Metrics(Collector):
    """Histograms and counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.ttft = Histogram(_TTFT_S)
        self.itl = Histogram(_PER_TOKEN_S)
        self.tpot = Histogram(_PER_TOKEN_S)
        self.e2e = Histogram(_E2E_S)
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = 0
        self.num_aborted = 0
        self.num_requests: dict[str, int] = dict.fromkeys((*get_args(FinishKind), "disconnect"), 0)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def start(self, started_s: float | None = None) -> RequestTimer:
        """Measure one choice of a request that arrived now, or at `started_s` of `now`."""
        return RequestTimer(self, now() if started_s is None else started_s)

    def abandoned(self, count: int) -> None:
        """`count` choices were not read to their end."""
        self.num_requests["disconnect"] += count
        self.num_aborted += count

    def render(self, stats: SchedulerStats | None) -> bytes:
        """All in Prometheus's text form; without the scheduler's part if `stats` is None."""
        text = generate_latest(self._registry)
        if stats is not None:
            load = CollectorRegistry()
            load.register(_Load(stats))
            text += generate_latest(load)
        return text

    def collect(self) -> Iterator[Metric]:
        """What `render` writes; for the registry."""
        for name, (histogram, what) in {
            "time_to_first_token_seconds": (self.ttft, "From arrival to the first tokens."),
            "inter_token_latency_seconds": (
                self.itl,
                "Time between two outputs, by the number of tokens in the later one.",
            ),
            "request_time_per_output_token_seconds": (
                self.tpot,
                "Mean time per token after the first, of one request.",
            ),
            "e2e_request_latency_seconds": (self.e2e, "From arrival to the last output."),
        }.items():
            yield histogram.family(name, what)
        for name, (value, what) in {
            "prompt_tokens": (self.prompt_tokens, "Prompt tokens of ended requests."),
            "generation_tokens": (self.generation_tokens, "Tokens generated."),
            "cached_tokens": (
                self.cached_tokens,
                "Prompt tokens of ended requests that came from the cache.",
            ),
            "num_aborted_requests": (
                self.num_aborted,
                "Requests that were aborted, or whose client left.",
            ),
        }.items():
            yield CounterMetricFamily(f"{_PREFIX}{name}", what, value=value)
        requests = CounterMetricFamily(
            f"{_PREFIX}num_requests", "Requests that ended, by how.", labels=("finish",)
        )
        for kind, count in self.num_requests.items():
            requests.add_metric((kind,), count)
        yield requests


def now() -> float:
    """The clock of all timers, in seconds."""
    return time.perf_counter()


class RequestTimer:
    """The times and tokens of one choice."""

    def __init__(self, metrics: Metrics, started_s: float) -> None:
        self._metrics = metrics
        self._started_s = started_s
        self._first_s = self._last_s = 0.0
        self._num_tokens = 0

    def tokens(self, count: int) -> None:
        """`count` tokens came, at least one."""
        at = now()
        if self._num_tokens:
            self._metrics.itl.observe((at - self._last_s) / count)
        else:
            self._first_s = at
            self._metrics.ttft.observe(at - self._started_s)
        self._last_s = at
        self._num_tokens += count
        self._metrics.generation_tokens += count

    def end(self, finish: FinishReason, usage: Usage | None) -> None:
        """The last output came."""
        metrics, at = self._metrics, now()
        metrics.num_requests[finish.kind] += 1
        metrics.e2e.observe(at - self._started_s)
        if self._num_tokens > 1:
            metrics.tpot.observe((self._last_s - self._first_s) / (self._num_tokens - 1))
        if finish.kind == "abort":
            metrics.num_aborted += 1
        if usage is not None:
            metrics.prompt_tokens += usage.prompt_tokens
            metrics.cached_tokens += usage.cached_tokens


class _Load(Collector):
    """The scheduler's totals and present load."""

    def __init__(self, stats: SchedulerStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        for name, (what, value) in _gauges(self._stats).items():
            yield GaugeMetricFamily(f"{_PREFIX}{name}", what, value=value)
        for name, (what, value) in _totals(self._stats).items():
            yield CounterMetricFamily(f"{_PREFIX}{name}", what, value=value)


def _gauges(stats: SchedulerStats) -> dict[str, tuple[str, float]]:
    used = stats.pool_tokens - stats.free_tokens - stats.evictable_tokens
    return {
        "num_running_reqs": ("Requests that hold KV.", stats.num_running),
        "num_queue_reqs": ("Requests that wait.", stats.num_waiting - stats.num_compiling),
        "num_grammar_queue_reqs": ("Requests whose grammar compiles.", stats.num_compiling),
        "num_used_tokens": ("KV slots that requests use.", used),
        "kv_available_tokens": ("KV slots that hold nothing.", stats.free_tokens),
        "kv_evictable_tokens": ("KV slots of cached, unused tokens.", stats.evictable_tokens),
        "max_total_num_tokens": ("KV slots of the pool.", stats.pool_tokens),
        "token_usage": ("Share of the pool that requests use.", _share(used, stats.pool_tokens)),
        "cache_hit_rate": (
            "Share of the prompt tokens of ended requests that came from the cache.",
            _share(stats.num_cached_tokens, stats.num_prompt_tokens),
        ),
    }


def _totals(stats: SchedulerStats) -> dict[str, tuple[str, float]]:
    return {
        "num_retractions": ("Requests that gave back their KV.", stats.num_retractions),
        "num_forward_passes": ("Steps computed.", stats.num_forward_passes),
        "computed_tokens": ("Tokens that steps computed.", stats.num_computed_tokens),
        "num_failed_steps": ("Steps that failed.", stats.num_failed_steps),
        "num_rebuilds": (
            "Times that the KV pool was emptied because its books were wrong.",
            stats.num_rebuilds,
        ),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
