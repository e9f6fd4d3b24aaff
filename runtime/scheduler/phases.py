"""How long the parts of a turn of the scheduler's loop take; knows nothing of what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from ..histogram import Histogram, HistogramData

LoopPhase = Literal["ingest", "plan", "launch", "wait", "settle", "sample", "emit"]
LOOP_PHASES: tuple[LoopPhase, ...] = get_args(LoopPhase)

_SECONDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)


class LoopWatch:
    """A stopwatch for one turn at a time: what one part took ends where the next begins.

    A part may come several times in a turn: then it is what these took together. Turns that
    computed nothing are not counted.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._histograms = {phase: Histogram(_SECONDS) for phase in LOOP_PHASES}
        self._turn: dict[LoopPhase, float] = dict.fromkeys(LOOP_PHASES, 0.0)
        self._at = 0.0

    def start(self) -> None:
        """A turn begins; one that has not ended is forgotten."""
        self._turn = dict.fromkeys(LOOP_PHASES, 0.0)
        self._at = self._clock()

    def lap(self, phase: LoopPhase) -> float:
        """What was done since the last lap was of `phase`; the time now."""
        now = self._clock()
        self._turn[phase] += now - self._at
        self._at = now
        return now

    @property
    def busy_s(self) -> float:
        """Of this turn, so far, without what the device was waited for, or computed beside."""
        return sum(s for phase, s in self._turn.items() if phase not in ("wait", "sample"))

    def end(self) -> None:
        """The turn is over."""
        for phase, seconds in self._turn.items():
            self._histograms[phase].observe(seconds)

    @property
    def data(self) -> dict[LoopPhase, HistogramData]:
        return {phase: self._histograms[phase].data for phase in LOOP_PHASES}
