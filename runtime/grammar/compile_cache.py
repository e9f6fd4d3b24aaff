"""Equal constraints compiled once, results kept within a bound, each caller with a deadline.

Knows no processes: what compiles is a coroutine, and is cancelled when nobody waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from ..errors import EngineClosed, InvalidRequest
from ..histogram import Histogram, HistogramData
from ..messages import Constraint
from .byte_lru import ByteLru, Sized
from .checks import param_of

G = TypeVar("G", bound=Sized)

_COMPILE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50)


@dataclass(eq=False, slots=True)
class _Flight(Generic[G]):
    """One compilation and how many wait for it."""

    task: asyncio.Task[G]
    num_waiting: int = 0


class CompileCache(Generic[G]):
    """`get` is for one event loop, the rest for any thread. Errors are not kept."""

    def __init__(
        self,
        compile_one: Callable[[Constraint], Coroutine[Any, Any, G]],
        *,
        cache_bytes: int,
        deadline_s: float,
    ) -> None:
        self._compile_one = compile_one
        self._deadline_s = deadline_s
        self._flights: dict[Constraint, _Flight[G]] = {}
        self._lock = threading.Lock()  # guards what follows
        self._cache: ByteLru[Constraint, G] = ByteLru(cache_bytes)
        self._compile_times = Histogram(_COMPILE_S)
        self._num_late = 0
        self._num_abandoned = 0

    @property
    def compile_times(self) -> HistogramData:
        """Seconds from a compilation's first caller to its end, failures too."""
        with self._lock:
            return self._compile_times.data

    @property
    def num_bytes(self) -> int:
        return self._cache.num_bytes

    @property
    def num_late(self) -> int:
        """Compilations that were given up because of deadlines."""
        return self._num_late

    @property
    def num_abandoned(self) -> int:
        """Compilations that were given up because their callers left."""
        return self._num_abandoned

    def find(self, constraint: Constraint) -> G | None:
        """What is in the cache."""
        with self._lock:
            return self._cache.get(constraint)

    async def get(self, constraint: Constraint) -> G:
        """The compiled constraint, or its error; `InvalidRequest` after the deadline.

        The last one who leaves, by then or by a cancellation, ends the compilation.
        """
        if (found := self.find(constraint)) is not None:
            return found
        flight = self._flights.get(constraint) or self._take_off(constraint)
        flight.num_waiting += 1
        is_late = False
        try:
            await asyncio.wait({flight.task}, timeout=self._deadline_s)
            is_late = not flight.task.done()
        finally:
            flight.num_waiting -= 1
            if not flight.num_waiting and not flight.task.done():
                self._give_up(constraint, flight, is_late=is_late)
        if is_late:
            param = param_of(constraint)
            raise InvalidRequest(
                f"{param}: compiling takes longer than {self._deadline_s:g} s", param=param
            )
        if flight.task.cancelled():
            raise EngineClosed("the grammar compiler was closed")
        return flight.task.result()

    def close(self) -> None:
        """End every compilation; on the event loop."""
        for flight in self._flights.values():
            flight.task.cancel()

    def _take_off(self, constraint: Constraint) -> _Flight[G]:
        started = monotonic()
        task = asyncio.get_running_loop().create_task(self._compile_one(constraint))
        flight = self._flights[constraint] = _Flight(task)

        def landed(task: asyncio.Task[G]) -> None:
            if self._flights.get(constraint) is flight:
                del self._flights[constraint]
            with self._lock:
                self._compile_times.observe(monotonic() - started)
                if not task.cancelled() and task.exception() is None:
                    self._cache.put(constraint, task.result())

        task.add_done_callback(landed)
        return flight

    def _give_up(self, constraint: Constraint, flight: _Flight[G], *, is_late: bool) -> None:
        del self._flights[constraint]  # whoever comes now starts anew
        flight.task.cancel()
        with self._lock:
            self._num_late += is_late
            self._num_abandoned += not is_late
