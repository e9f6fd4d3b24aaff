"""What the scheduler has done so far, in totals, and what it holds now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Totals since the start, and the present load; in tokens or counts.

    num_computed_tokens: tokens that forward passes computed. num_prompt_tokens and
    num_cached_tokens: prompt tokens of the requests that have ended, and how many of them
    came from the cache. num_rebuilds: times that the KV pool was emptied because its books were
    wrong. num_waiting: queued, those whose grammar is being compiled
    included. pool_tokens is the size of the KV pool, of which free_tokens hold nothing and
    evictable_tokens are cached and used by no request.
    """

    num_forward_passes: int = 0
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_retractions: int = 0
    num_failed_steps: int = 0
    num_rebuilds: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_compiling: int = 0
    pool_tokens: int = 0
    free_tokens: int = 0
    evictable_tokens: int = 0


@dataclass(slots=True)
class Totals:
    """The counters behind `SchedulerStats`; the scheduler alone changes them."""

    forward_passes: int = 0
    computed: int = 0
    prompt: int = 0
    cached: int = 0
    outputs: int = 0
    failed_steps: int = 0
    rebuilds: int = 0
