"""What the scheduler measures of requests and of the cache's memory; changes nothing of them.

Times are of one monotonic clock, in seconds; a request's own are on it, so that they can be
sent with its last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from ..histogram import Histogram
from ..messages import FinishReason
from .request import Request
from .stats import MissedGoal

_QUEUE_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_DEVICE_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5)
_AGE_S = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 14_400, 86_400)


class Measures:
    """Histograms and counters of one scheduler. The goals are in seconds, None if not set."""

    def __init__(
        self, clock: Callable[[], float], *, goal_ttft_s: float | None, goal_itl_s: float | None
    ) -> None:
        self._clock = clock
        self._goal_ttft_s = goal_ttft_s
        self._goal_itl_s = goal_itl_s
        self.queue = Histogram(_QUEUE_S)
        self.device = Histogram(_DEVICE_S)
        self.evicted_age = Histogram(_AGE_S)
        self.num_evicted = 0
        self.num_judged: dict[MissedGoal, int] = dict.fromkeys(get_args(MissedGoal), 0)

    def accepted(self, request: Request) -> None:
        request.times.accepted_s = self._clock()

    def grammar_ready(self, request: Request) -> None:
        request.times.grammar_s = self._clock()

    def scheduled(self, requests: Iterable[Request], now: float) -> None:
        """A step with rows of these requests was launched."""
        for request in requests:
            times = request.times
            if not times.scheduled_s:
                times.scheduled_s = now
                self.queue.observe(now - times.accepted_s)

    def evicted(self, num_tokens: int, age_s: float) -> None:
        """Tokens that nobody had used for `age_s` left the cache."""
        self.num_evicted += num_tokens
        self.evicted_age.observe(age_s, num_tokens)

    def ended(self, request: Request, finish: FinishReason) -> None:
        """A request has ended: whether it met the goals, if it got what it asked for."""
        request.times.ended_s = self._clock()
        if self._goal_ttft_s is None and self._goal_itl_s is None:
            return
        if finish.retry_after_s is not None:
            self.num_judged["ttft"] += 1
        elif finish.kind in ("stop", "length") and request.num_outputs:
            self.num_judged[self._missed(request)] += 1

    def _missed(self, request: Request) -> MissedGoal:
        times, gaps = request.times, request.num_outputs - 1
        itl_s = (times.last_token_s - times.first_token_s) / gaps if gaps else 0.0
        late = _exceeds(times.first_token_s - times.accepted_s, self._goal_ttft_s)
        slow = _exceeds(itl_s, self._goal_itl_s)
        if late and slow:
            return "both"
        return "ttft" if late else "itl" if slow else "none"


def _exceeds(seconds: float, goal_s: float | None) -> bool:
    return goal_s is not None and seconds > goal_s
