"""Whether the next step is planned while one is in flight, or after it; output is the same.

Planned at once, a step costs the device no idle time. But a jump is found when a step settles:
by then the next one is computing its request's last token alone, whose next token is known, so
that the jump has to wait for the step behind it, and the request takes one pass more. The share
of rows for which that is expected is held against the share of time that the device would idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from .flight import Flight
from .request import Request

_OF_THE_PAST = 0.95
"""How much of an average is left after one more value."""
_PRIOR_TOKENS = 4
"""How many sampled tokens of all requests what is known of all others counts for."""


@dataclass(slots=True)
class _Average:
    value: float = 0.0
    _weight: float = 0.0

    def add(self, value: float) -> None:
        self._weight = _OF_THE_PAST * self._weight + (1 - _OF_THE_PAST)
        self.value += (value - self.value) * (1 - _OF_THE_PAST) / self._weight


class Depth:
    """max_tokens: larger steps end before the next one is planned; 0: all do."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._jumps = _Average()
        self._host_s = _Average()
        self._device_s = _Average()

    def observe_turn(self, host_s: float) -> None:
        """The scheduler was busy so long between two steps."""
        self._host_s.add(host_s)

    def observe_step(self, device_s: float) -> None:
        self._device_s.add(device_s)

    def observe_token(self, request: Request, *, jumped: bool) -> None:
        """A token was sampled, and others are certain to follow it, or none is."""
        if request.guide is not None:
            request.num_jumps += jumped
            self._jumps.add(float(jumped))

    def ends_first(self, flight: Flight) -> bool:
        """Whether a step that was just given its rows to sample is to end now."""
        if flight.num_tokens > self._max_tokens:
            return True
        rows = flight.launched.step.sampling_rows
        lost = sum(self._likelihood(flight.requests[i]) for i in rows if flight.samples(i))
        return lost > 0 and lost * self._device_s.value > len(rows) * self._host_s.value

    def _likelihood(self, request: Request) -> float:
        """Of a jump behind the token that is sampled next."""
        if request.guide is None:
            return 0.0
        num_sampled = request.num_outputs - request.num_forced
        known = request.num_jumps + _PRIOR_TOKENS * self._jumps.value
        return known / (num_sampled + _PRIOR_TOKENS)
