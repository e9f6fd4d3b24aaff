"""On the import path of a server's processes: SIGUSR1 breaks the books of their caches."""

from __future__ import annotations

import gc
import signal


def break_the_books(number: int, frame: object) -> None:
    for thing in gc.get_objects():
        if type(thing).__name__ == "RadixCache":
            thing.last_step += 100


signal.signal(signal.SIGUSR1, break_the_books)
