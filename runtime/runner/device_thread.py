"""The thread that does the device's work, one piece after the other, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class DeviceThread:
    """A daemon thread that runs what it is given in the order of `submit`.

    Unlike a pool of concurrent.futures it takes work until it is closed, also while the
    interpreter shuts down: the engine that owns it is closed only then.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="espalier-device", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done after all that was submitted before."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._work.put(run)
        return future

    def close(self) -> None:
        """Finish what was submitted, then end the thread. Idempotent."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
