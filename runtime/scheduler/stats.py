"""What the scheduler has done so far, in totals, and what it holds now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..grammar.stats import GrammarStats
from ..histogram import HistogramData
from .phases import LoopPhase

MissedGoal = Literal["none", "ttft", "itl", "both"]
Judgement = Literal["valid", "invalid", "unknown"]


@dataclass(frozen=True, slots=True)
class SchedulerHistograms:
    """Distributions since the start; in seconds, by request, step or turn of the loop.

    queue: from a request's arrival here to its first step. device: how long a step kept the
    device busy. phases: what each part of a turn of the loop took. grammar: compilations.
    evicted_age: by evicted token, how long nobody had used it.
    """

    queue: HistogramData = HistogramData()
    device: HistogramData = HistogramData()
    phases: dict[LoopPhase, HistogramData] = field(default_factory=dict[LoopPhase, HistogramData])
    grammar: HistogramData = HistogramData()
    evicted_age: HistogramData = HistogramData()


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Totals since the start, and the present load; in tokens or counts.

    num_computed_tokens: tokens that forward passes computed. num_prompt_tokens and
    num_cached_tokens: prompt tokens of the requests that have ended, and how many of them
    came from the cache; num_forced_tokens: how many output tokens of theirs their constraints
    forced. num_rebuilds: times that the KV pool was emptied because its books were
    wrong. num_judged: requests by which of the promised times they missed, if any is promised.
    num_structured: whole outputs under a JSON schema by what their validation said;
    num_violations: of the invalid ones, those whose grammar should have enforced the schema.
    num_waiting: queued, those whose grammar is being compiled included. pool_tokens is the size
    of the KV pool, of which free_tokens hold nothing, tree_tokens are cached, and
    evictable_tokens cached and used by no request. leased_tokens are kept by leases; of those,
    yieldable_tokens are used by no request either. started_at: seconds since the epoch. grammars:
    the compilers.
    """

    num_forward_passes: int = 0
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_forced_tokens: int = 0
    num_retractions: int = 0
    num_failed_steps: int = 0
    num_rebuilds: int = 0
    num_evicted_tokens: int = 0
    num_judged: dict[MissedGoal, int] = field(default_factory=dict[MissedGoal, int])
    num_structured: dict[Judgement, int] = field(default_factory=dict[Judgement, int])
    num_violations: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_compiling: int = 0
    pool_tokens: int = 0
    free_tokens: int = 0
    evictable_tokens: int = 0
    leased_tokens: int = 0
    yieldable_tokens: int = 0
    tree_tokens: int = 0
    started_at: float = 0.0
    grammars: GrammarStats = GrammarStats()
    histograms: SchedulerHistograms = field(default_factory=SchedulerHistograms)


@dataclass(slots=True)
class Totals:
    """The counters behind `SchedulerStats`; the scheduler alone changes them."""

    forward_passes: int = 0
    computed: int = 0
    prompt: int = 0
    cached: int = 0
    outputs: int = 0
    forced: int = 0
    failed_steps: int = 0
    rebuilds: int = 0
