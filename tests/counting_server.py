"""A library behind the benches' token server: after a prompt it counts on from the last id."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bench.peers.token_server import serve


class Counting:
    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int]] = {}  # the last id, and how many are missing

    def add(self, key: int, prompt: list[int], new: int) -> None:
        self._open[key] = (prompt[-1], new)

    def step(self) -> Iterator[tuple[int, list[int]]]:
        for key, (last, missing) in list(self._open.items()):
            if missing == 1:
                del self._open[key]
            else:
                self._open[key] = (last + 1, missing - 1)
            yield key, [last + 1]


if __name__ == "__main__":
    serve(Counting(), port=int(sys.argv[1]), gather_s=float(sys.argv[2]))
