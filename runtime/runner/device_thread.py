"""The thread that does the device's work, one piece after the other, in order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

_IDLE_S = 0.02  # without work before the thread counts as idle: between two steps it is not
_PAUSE_S = 0.001  # between pieces of idle work, for whoever else wants the core


class DeviceThread:
    """A daemon thread that runs what it is given in the order of `submit`.

    Unlike a pool of concurrent.futures it takes work until it is closed, also while the
    interpreter shuts down: the engine that owns it is closed only then.

    idle_work: done again and again while there is no other, until it returns false: then there
    is no more of it before other work has been done. Whoever submits work waits for one piece
    at most.
    """

    def __init__(self, idle_work: Callable[[], bool]) -> None:
        self._idle_work = idle_work
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
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        patience_s = _IDLE_S
        while True:
            try:
                return self._work.get(timeout=patience_s)
            except Empty:
                if not self._do_idle_work():
                    return self._work.get()
            patience_s = _PAUSE_S

    def _do_idle_work(self) -> bool:
        """Nobody waits for it who could be told of a failure: it is not tried again."""
        try:
            return self._idle_work()
        except Exception:
            logger.exception("the device's idle work failed, and is given up")
            self._idle_work = _nothing
            return False


def _nothing() -> bool:
    return False
