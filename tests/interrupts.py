"""A Ctrl-C that arrives: a signal that comes just before the main thread waits for a lock is only
noticed at the next one, so it is sent until it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def main_thread_interruptible() -> Generator[Callable[[], None]]:
    """Gives what raises one `KeyboardInterrupt` in the main thread, from any thread."""
    main = threading.main_thread().ident
    assert main is not None
    has_come = threading.Event()
    senders: list[threading.Thread] = []

    def take(number: int, frame: FrameType | None) -> None:
        if not has_come.is_set():
            has_come.set()
            raise KeyboardInterrupt

    def send() -> None:
        while not has_come.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            has_come.wait(0.05)

    def interrupt() -> None:
        senders.append(threading.Thread(target=send, daemon=True))
        senders[-1].start()

    before = signal.signal(signal.SIGINT, take)
    try:
        yield interrupt
    finally:
        for sender in senders:
            sender.join()
        signal.signal(signal.SIGINT, before)
