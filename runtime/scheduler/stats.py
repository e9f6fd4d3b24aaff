"""What the scheduler has done so far, in totals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Totals since the start, in tokens or counts.

    num_computed_tokens: tokens that forward passes computed; num_cached_tokens: prompt
    tokens that requests took from the cache instead (added when a request ends).
    """

    num_forward_passes: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_retractions: int = 0
    num_failed_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0


@dataclass(slots=True)
class Totals:
    """The counters behind `SchedulerStats`; the scheduler alone changes them."""

    forward_passes: int = 0
    computed: int = 0
    cached: int = 0
    outputs: int = 0
    failed_steps: int = 0
