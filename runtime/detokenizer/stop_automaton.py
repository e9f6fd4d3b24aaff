"""How far a text has got into any of its stop strings; works on bytes, knows no tokens.

Aho and Corasick, "Efficient string matching: an aid to bibliographic search", 1975.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache


class StopAutomaton:
    """A trie of the stops; a state is the longest suffix of the text that begins some stop.

    `depths[state]` is that suffix's length in bytes, `match_lens[state]` the length of the
    longest stop that ends the text (0: none does). Stops "abc" and "bd":

        0 ─a─ 1 ─b─ 2 ─c─ 3        a stop's last state; `fail` of 2 is 4:
        └──b─ 4 ─d─ 5              after "ab", "b" is the next shorter beginning
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._edges: dict[tuple[int, int], int] = {}
        self._fails = [0]
        self.depths = [0]
        self.match_lens = [0]
        for stop in stops:
            self._add(stop.encode("utf-8", "surrogatepass"))
        self._link()

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte; amortised constant work."""
        while (after := self._edges.get((state, byte))) is None:
            if state == 0:
                return 0
            state = self._fails[state]
        return after

    def _add(self, stop: bytes) -> None:
        state = 0
        for byte in stop:
            after = self._edges.setdefault((state, byte), len(self.depths))
            if after == len(self.depths):
                self.depths.append(self.depths[state] + 1)
                self.match_lens.append(0)
                self._fails.append(0)
            state = after
        self.match_lens[state] = len(stop)

    def _link(self) -> None:
        """Fill in `fail` and `match_lens` breadth first: a link leads to a shorter state."""
        children: list[list[tuple[int, int]]] = [[] for _ in self.depths]
        for (parent, byte), child in self._edges.items():
            children[parent].append((byte, child))
        queue = deque([0])
        while queue:
            parent = queue.popleft()
            for byte, child in children[parent]:
                fail = self.step(self._fails[parent], byte) if parent else 0
                self._fails[child] = fail
                self.match_lens[child] = max(self.match_lens[child], self.match_lens[fail])
                queue.append(child)


@lru_cache(maxsize=8)
def stop_automaton(stops: tuple[str, ...]) -> StopAutomaton:
    """The automaton of `stops`, shared by the choices of a request."""
    return StopAutomaton(stops)
