"""Random texts of a grammar, for tests that hold what it derives against something else."""

from __future__ import annotations

import random

from espalier.runtime.grammar.cfg import Grammar
from espalier.runtime.grammar.closing_costs import Costs
from espalier.runtime.grammar.keys import Keys
from espalier.runtime.grammar.regular import CharSet, Regex, is_empty
from espalier.runtime.grammar.walk import Threads, Walk

_LIMIT = 100
_MAX_TRIES = 50


class Derivations:
    """Of one grammar. Beyond a length the shortest way to the end is taken."""

    def __init__(self, grammar: Grammar, rng: random.Random) -> None:
        self._walk = Walk(grammar)
        self._costs = Costs(self._walk.root, len)
        self._rng = rng
        self._symbols: dict[Regex, list[CharSet]] = {}

    def text(self) -> str:
        """One without a key that stands twice in an object."""
        for _ in range(_MAX_TRIES):
            text, keys = self._text(), Keys()
            keys.advance(text.encode())
            if not keys.has_repeated:
                return text
        raise AssertionError(f"keys repeat in {_MAX_TRIES} texts")

    def _text(self) -> str:
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

    def _next_byte(self, threads: Threads) -> int:
        """Of a thread that leads somewhere; not all of them do."""
        terminals = self._rng.sample([terminal for terminal, _ in threads], len(threads))
        terminal = next(t for t in terminals if isinstance(t, bytes) or self._symbols_of(t))
        if isinstance(terminal, bytes):
            return terminal[0]
        symbols = self._rng.choice(self._symbols_of(terminal))
        first, last = self._rng.choice(symbols.ranges)
        return self._rng.randint(first, last)

    def _symbols_of(self, terminal: Regex) -> list[CharSet]:
        """Those that lead somewhere, as the derivatives group them."""
        if terminal not in self._symbols:
            self._symbols[terminal] = [
                symbols
                for symbols, target in self._walk.derivatives.steps(terminal)
                if not is_empty(target)
            ]
        return self._symbols[terminal]
