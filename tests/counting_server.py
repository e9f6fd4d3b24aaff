"""A library behind the benches' token server: after a prompt it counts on from the last id.

Under a schema it ends after half of the tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bench.peers.token_server import serve


class Counting:
    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int]] = {}  # the last id, and how many are missing

        self._early: set[int] = set()

    def add(self, key: int, prompt: list[int], new: int, schema: str | None) -> None:
        self._open[key] = (prompt[-1], new if schema is None else new // 2)
        if schema is not None:
            self._early.add(key)

    def step(self) -> Iterator[tuple[int, list[int] | None]]:
        for key, (last, missing) in list(self._open.items()):
            if missing == 1:
                del self._open[key]
            else:
                self._open[key] = (last + 1, missing - 1)
            yield key, [last + 1]
            if missing == 1 and key in self._early:
                yield key, None


if __name__ == "__main__":
    serve(Counting(), port=int(sys.argv[1]), gather_s=float(sys.argv[2]))
