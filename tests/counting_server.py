"""A library behind the benches' token server: after a prompt it counts on from the last id.

Under a schema it ends after half of the tokens. A step after a first one waits for the file of
the third argument, if there is one, and leaves nobody else the interpreter meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep

from bench.peers.token_server import serve


class Counting:
    def __init__(self, gate: Path | None) -> None:
        self._gate = gate
        self._num_steps = 0
        self._open: dict[int, tuple[int, int]] = {}  # the last id, and how many are missing
        self._early: set[int] = set()

    def add(self, key: int, prompt: list[int], new: int, schema: str | None) -> None:
        self._open[key] = (prompt[-1], new if schema is None else new // 2)
        if schema is not None:
            self._early.add(key)

    def step(self) -> Iterator[tuple[int, list[int] | None]]:
        self._num_steps += 1
        while self._gate is not None and self._num_steps > 1 and not self._gate.exists():
            pass
        sleep(0.002)  # it takes time, as computing does
        for key, (last, missing) in list(self._open.items()):
            if missing == 1:
                del self._open[key]
            else:
                self._open[key] = (last + 1, missing - 1)
            yield key, [last + 1]
            if missing == 1 and key in self._early:
                yield key, None


if __name__ == "__main__":
    _, port, gather_s, *gate = sys.argv
    serve(Counting(Path(*gate) if gate else None), port=int(port), gather_s=float(gather_s))
