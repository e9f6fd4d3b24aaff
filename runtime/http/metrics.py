"""What the server measures of its requests, in Prometheus's text form; SGLang's names.

A choice of a request counts as one request. What the scheduler holds is not kept here: its
`SchedulerStats` are rendered as they are given.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..histogram import Histogram
from ..messages import FinishKind, FinishReason, Usage
from ..scheduler.stats import SchedulerStats
from .families import counter, counters, histogram
from .scheduler_metrics import SchedulerMetrics

_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100)
_PER_TOKEN_S = (0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 5)
_E2E_S = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100, 200, 400, 800)

AbortCause = Literal["client", "disconnect", "shutdown", "invalid", "overload", "lost", "error"]


class Metrics(Collector):
    """Histograms and counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.ttft = Histogram(_TTFT_S)
        self.itl = Histogram(_PER_TOKEN_S)
        self.tpot = Histogram(_PER_TOKEN_S)
        self.e2e = Histogram(_E2E_S)
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = 0
        self.num_requests: dict[str, int] = dict.fromkeys((*get_args(FinishKind), "disconnect"), 0)
        self.num_aborted: dict[AbortCause, int] = dict.fromkeys(get_args(AbortCause), 0)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def start(self, started_s: float | None = None) -> RequestTimer:
        """Measure one choice of a request that arrived now, or at `started_s` of `now`."""
        return RequestTimer(self, now() if started_s is None else started_s)

    def abandoned(self, count: int) -> None:
        """`count` choices were not read to their end."""
        self.num_requests["disconnect"] += count
        self.num_aborted["disconnect"] += count

    def render(self, stats: SchedulerStats | None) -> bytes:
        """All in Prometheus's text form; without the scheduler's part if `stats` is None."""
        text = generate_latest(self._registry)
        if stats is not None:
            scheduler = CollectorRegistry()
            scheduler.register(SchedulerMetrics(stats))
            text += generate_latest(scheduler)
        return text

    def collect(self) -> Iterator[Metric]:
        """What `render` writes; for the registry."""
        for name, (times, what) in {
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
            yield histogram(name, what, times.data)
        for name, (value, what) in {
            "prompt_tokens": (self.prompt_tokens, "Prompt tokens of ended requests."),
            "generation_tokens": (self.generation_tokens, "Tokens generated."),
            "cached_tokens": (
                self.cached_tokens,
                "Prompt tokens of ended requests that came from the cache.",
            ),
        }.items():
            yield counter(name, what, value)
        yield counters("num_requests", "Requests that ended, by how.", "finish", self.num_requests)
        yield counters(
            "num_aborted_requests",
            "Requests that did not get all they asked for, by why.",
            "reason",
            self.num_aborted,
        )


def now() -> float:
    """The clock of all timers, in seconds; the scheduler's, too."""
    return time.monotonic()


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
        if (cause := _abort_cause(finish)) is not None:
            metrics.num_aborted[cause] += 1
        if usage is not None:
            metrics.prompt_tokens += usage.prompt_tokens
            metrics.cached_tokens += usage.cached_tokens


def _abort_cause(finish: FinishReason) -> AbortCause | None:
    match finish:
        case FinishReason(kind="abort"):
            return "shutdown" if finish.shutdown else "client"
        case FinishReason(kind="error", retry_after_s=float()):
            return "overload"
        case FinishReason(kind="error", bad_request=True):
            return "invalid"
        case FinishReason(kind="error"):
            return "lost" if finish.lost else "error"
        case _:
            return None
