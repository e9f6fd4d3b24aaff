"""The scheduler's stats as metrics; keeps nothing: they are rendered as they were reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..grammar.stats import StopReason
from ..scheduler.phases import LOOP_PHASES
from ..scheduler.stats import Judgement, MissedGoal, SchedulerStats
from .families import counter, counters, gauge, histogram, histograms


class SchedulerMetrics(Collector):
    """What the scheduler did since it started, and its present load."""

    def __init__(self, stats: SchedulerStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        for name, (what, value) in _gauges(self._stats).items():
            yield gauge(name, what, value)
        for name, (what, value) in _totals(self._stats).items():
            yield counter(name, what, value)
        yield counters(
            "slo_requests",
            "Requests by which of the promised times they missed; 0 while none is promised.",
            "missed",
            {goal: self._stats.num_judged.get(goal, 0) for goal in get_args(MissedGoal)},
        )
        yield counters(
            "grammar_compilations_stopped",
            "Compilations that were killed, or whose compiler died, by why.",
            "cause",
            {why: self._stats.grammars.num_stopped.get(why, 0) for why in get_args(StopReason)},
        )
        yield counters(
            "structured_outputs",
            "Whole outputs under a JSON schema, by what the exact validator said of them.",
            "verdict",
            {
                verdict: self._stats.num_structured.get(verdict, 0)
                for verdict in get_args(Judgement)
            },
        )
        yield from self._histograms()

    def _histograms(self) -> Iterator[Metric]:
        data = self._stats.histograms
        yield histogram(
            "queue_time_seconds",
            "From arrival at the scheduler to the first step, the grammar's compilation included.",
            data.queue,
        )
        yield histogram("step_device_seconds", "How long a step kept the device busy.", data.device)
        yield histograms(
            "loop_phase_seconds",
            "What each part of a turn of the scheduler's loop took.",
            "phase",
            {phase: data.phases[phase] for phase in LOOP_PHASES if phase in data.phases},
        )
        yield histogram(
            "grammar_compilation_time_seconds",
            "From the first request for a grammar to its end, failures too; not if it was cached.",
            data.grammar,
        )
        yield histogram(
            "evicted_token_age_seconds",
            "How long an evicted token had not been used.",
            data.evicted_age,
        )


def _gauges(stats: SchedulerStats) -> dict[str, tuple[str, float]]:
    idle = stats.free_tokens + stats.evictable_tokens + stats.yieldable_tokens
    used = stats.pool_tokens - idle
    return {
        "num_running_reqs": ("Requests that hold KV.", stats.num_running),
        "num_queue_reqs": ("Requests that wait.", stats.num_waiting - stats.num_compiling),
        "num_grammar_queue_reqs": ("Requests whose grammar compiles.", stats.num_compiling),
        "grammar_compilations_running": (
            "Grammars that are being compiled, and outputs that are being checked.",
            stats.grammars.num_running,
        ),
        "grammar_compilations_queued": (
            "Grammars, and outputs to be checked, that wait for a compiler.",
            stats.grammars.num_queued,
        ),
        "grammar_cache_bytes": ("Memory of cached grammars.", stats.grammars.cache_bytes),
        "num_used_tokens": ("KV slots that requests use.", used),
        "kv_available_tokens": ("KV slots that hold nothing.", stats.free_tokens),
        "kv_evictable_tokens": ("KV slots of cached, unused tokens.", stats.evictable_tokens),
        "kv_leased_tokens": ("KV slots of tokens that leases keep.", stats.leased_tokens),
        "kv_yieldable_tokens": (
            "KV slots of leased, unused tokens, to be had before a request goes without.",
            stats.yieldable_tokens,
        ),
        "kv_cached_tokens": ("KV slots of cached tokens, used or not.", stats.tree_tokens),
        "max_total_num_tokens": ("KV slots of the pool.", stats.pool_tokens),
        "token_usage": ("Share of the pool that requests use.", _share(used, stats.pool_tokens)),
        "cache_hit_rate": (
            "Share of the prompt tokens of ended requests that came from the cache.",
            _share(stats.num_cached_tokens, stats.num_prompt_tokens),
        ),
        "scheduler_start_time_seconds": (
            "When the scheduler started, since the epoch.",
            stats.started_at,
        ),
    }


def _totals(stats: SchedulerStats) -> dict[str, tuple[str, float]]:
    return {
        "num_retractions": ("Requests that gave back their KV.", stats.num_retractions),
        "num_forward_passes": ("Steps computed.", stats.num_forward_passes),
        "computed_tokens": ("Tokens that steps computed.", stats.num_computed_tokens),
        "jump_forward_tokens": (
            "Output tokens of ended requests that constraints forced.",
            stats.num_forced_tokens,
        ),
        "num_failed_steps": ("Steps that failed.", stats.num_failed_steps),
        "num_rebuilds": (
            "Times that the KV pool was emptied because its books were wrong.",
            stats.num_rebuilds,
        ),
        "structured_violation": (
            "Outputs that break a JSON schema which their grammar enforces: bugs, all of them.",
            stats.num_violations,
        ),
        "evicted_tokens": (
            "Cached tokens that made room, or were flushed.",
            stats.num_evicted_tokens,
        ),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
