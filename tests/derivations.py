"""Random texts of a grammar, for tests that hold what it derives against something else."""

from __future__ import annotations

import random

from espalier.runtime.grammar.cfg import Grammar
from espalier.runtime.grammar.closing_costs import Costs
from espalier.runtime.grammar.regular import is_empty
from espalier.runtime.grammar.walk import Threads, Walk

_LIMIT = 400


class Derivations:
    """Of one grammar. Beyond a length the shortest way to the end is taken."""

    def __init__(self, grammar: Grammar, rng: random.Random) -> None:
        self._walk = Walk(grammar)
        self._costs = Costs(self._walk.root, len)
        self._rng = rng

    def text(self) -> str:
        data = bytearray()
        threads, is_whole = self._walk.start()
        while True:
            if is_whole and (not threads or self._rng.random() < 0.3):
                return data.decode()
            if len(data) > _LIMIT:
                if is_whole:
                    return data.decode()
                thread = min(threads, key=self._costs.of_thread)
                return (bytes(data) + b"".join(self._costs.ending(thread))).decode()
            byte = self._next_byte(threads)
            data.append(byte)
            threads, is_whole = self._walk.step(threads, byte)
            threads = frozenset(t for t in threads if self._costs.of_thread(t) < float("inf"))

    def _next_byte(self, threads: Threads) -> int:
        terminal, _ = self._rng.choice(tuple(threads))
        if isinstance(terminal, bytes):
            return terminal[0]
        steps = [
            (symbols, target)
            for symbols, target in self._walk.derivatives.steps(terminal)
            if not is_empty(target)
        ]
        symbols, _target = self._rng.choice(steps)
        first, last = self._rng.choice(symbols.ranges)
        return self._rng.randint(first, last)
