"""Whether the next step is planned while one is in flight, or after it; output is the same.

Planned at once, a step costs the device no idle time. But a jump is found when a step settles:
by then the next one is computing its request's last token alone, whose next token is known, so
that the jump has to wait for the step behind it, and the request takes one pass more. The share
of rows for which that is expected is held against the share of time that the device would idle.
What is expected is what was seen at the same place of the same grammar, in any request.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ..grammar.closing import Ending
from .flight import Flight
from .request import Request

_OF_THE_PAST = 0.95
"""How much of an average is left after one more value."""
_PRIOR_TOKENS = 4
"""How many sampled tokens of a request what is known of all others counts for."""
_PRIOR_VISITS = 1
"""How many tokens sampled at a place what is known of the whole request counts for."""
_MAX_VISITS = 256
"""Of which a place has a memory."""


@dataclass(slots=True)
class _Average:
    value: float = 0.0
    _weight: float = 0.0

    def add(self, value: float) -> None:
        self._weight = _OF_THE_PAST * self._weight + (1 - _OF_THE_PAST)
        self.value += (value - self.value) * (1 - _OF_THE_PAST) / self._weight


@dataclass(slots=True)
class _Visits:
    """Tokens that were sampled at a place, and behind how many of them others were forced."""

    num_sampled: float = 0.0
    num_jumps: float = 0.0

    def add(self, *, jumped: bool) -> None:
        if self.num_sampled >= _MAX_VISITS:
            self.num_sampled, self.num_jumps = self.num_sampled / 2, self.num_jumps / 2
        self.num_sampled += 1
        self.num_jumps += jumped


class Depth:
    """max_tokens: larger steps end before the next one is planned; 0: all do."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._jumps = _Average()
        self._visits: WeakKeyDictionary[Ending, _Visits] = WeakKeyDictionary()
        self._host_s = _Average()
        self._device_s = _Average()

    def observe_turn(self, host_s: float) -> None:
        """The scheduler was busy so long between two steps."""
        self._host_s.add(host_s)

    def observe_step(self, device_s: float) -> None:
        self._device_s.add(device_s)

    def observe_token(self, request: Request, *, jumped: bool) -> None:
        """A token was sampled, and others are certain to follow it, or none is."""
        if request.guide is None:
            return
        request.num_jumps += jumped
        self._jumps.add(float(jumped))
        place, request.sampled_at = request.sampled_at, None
        if place is not None:
            self._visits.setdefault(place, _Visits()).add(jumped=jumped)

    def ends_first(self, flight: Flight) -> bool:
        """Whether a step that was just given its rows to sample is to end now."""
        if flight.num_tokens > self._max_tokens:
            return True
        rows = flight.launched.step.sampling_rows
        lost = sum(self.likelihood(flight.requests[i]) for i in rows if flight.samples(i))
        return lost > 0 and lost * self._device_s.value > len(rows) * self._host_s.value

    def likelihood(self, request: Request) -> float:
        """Of a jump behind the token that is sampled now."""
        if request.guide is None:
            return 0.0
        num_sampled = request.num_outputs - request.num_forced
        known = request.num_jumps + _PRIOR_TOKENS * self._jumps.value
        expected = known / (num_sampled + _PRIOR_TOKENS)
        request.sampled_at = place = request.guide.place()
        here = None if place is None else self._visits.get(place)
        if here is None:
            return expected
        return (here.num_jumps + _PRIOR_VISITS * expected) / (here.num_sampled + _PRIOR_VISITS)
