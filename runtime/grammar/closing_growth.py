"""How much one token can lengthen the shortest ending, at the most, wherever it stands."""

from __future__ import annotations

from collections import deque
from math import inf
from time import monotonic

from .closing_costs import STRUCTURE, Costs, Spelling, below, num_structural, parts_of
from .regular import Alt, Chars, Derivatives, Regex, Repeat, Seq, parts, shortest
from .walk import Node

_MAX_STATES = 2_000
_LIMIT_S = 0.5


def max_growth(root: Node, costs: Costs, spelling: Spelling) -> float:
    """In tokens; `inf` where it takes too long to say.

    A token can leave the parts that are being read, which makes an ending shorter, and can begin
    one new part, as far in as its structural bytes reach. What is then left of that part, less
    what it cost before it began, is the growth.
    """
    try:
        return _Growth(root, costs, spelling).most()
    except _TooLong:
        return inf


class _TooLong(Exception):
    pass


class _Structural(Costs):
    """Structural bytes without which a node can't be passed, at the least."""

    def of_terminal(self, terminal: bytes | Regex) -> float:
        return num_structural(terminal) if isinstance(terminal, bytes) else _structural(terminal)


class _Growth:
    def __init__(self, root: Node, costs: Costs, spelling: Spelling) -> None:
        self._nodes = list(below(root))
        self._costs, self._spelling = costs, spelling
        self._needed = _Structural(root, num_structural)
        self._languages: dict[Regex, float] = {}
        self._left: list[dict[Node, float]] = []
        self._derivatives = Derivatives(None)
        self._deadline = monotonic() + _LIMIT_S

    def most(self) -> float:
        """Of tokens that begin a node, or go on inside it if it is a terminal."""
        above: dict[Node, list[Node]] = {node: [] for node in self._nodes}
        for node in self._nodes:
            for part in parts_of(node):
                above[part].append(node)
        for _ in range(self._spelling.max_structural + 1):
            self._settle(above)
        growth = 0.0
        for node, left in self._left[-1].items():
            if node.text is not None:
                growth = max(growth, self._within_text(node.text))
            elif node.language is not None:
                growth = max(growth, left)
            elif node.body is not None and (node.hi is None or node.lo < node.hi):
                growth = max(growth, self._left[-1][node.body])  # once more than it has to be
            else:
                growth = max(growth, left - self._costs.of_node(node))
        return growth

    def _within_text(self, text: bytes) -> float:
        """A shorter end of a text can take more tokens than a longer one."""
        most, least = 0.0, self._spelling.cost(text)
        for start in range(1, len(text)):
            cost = self._spelling.cost(text[start:])
            most, least = max(most, cost - least), min(least, cost)
        return most

    def _settle(self, above: dict[Node, list[Node]]) -> None:
        """The most that can be left of each node when it has begun and one structural byte more
        than before is read; -inf if there is nothing to read."""
        left: dict[Node, float] = dict.fromkeys(self._nodes, -inf)
        self._left.append(left)
        todo = deque(reversed(self._nodes))  # parts before what they are parts of, mostly
        waiting = set(todo)
        while todo:
            if monotonic() > self._deadline:
                raise _TooLong
            node = todo.popleft()
            waiting.discard(node)
            found = self._of(node, len(self._left) - 1)
            if found > left[node]:
                left[node] = found
                fresh = [parent for parent in above[node] if parent not in waiting]
                waiting.update(fresh)
                todo += fresh

    def _of(self, node: Node, structural: int) -> float:
        if node.text is not None:
            return self._in_text(node.text, structural)
        if node.language is not None:
            return self._in_language(node.language)
        left = self._left[structural]
        if node.options is not None:
            return max((left[option] for option in node.options), default=-inf)
        if node.parts is not None:
            return self._in_parts(node.parts, structural)
        assert node.body is not None, node
        later = max(node.lo - 1, 0)
        return left[node.body] + (later * self._costs.of_node(node.body) if later else 0)

    def _in_text(self, text: bytes, structural: int) -> float:
        """Of a text, any end of it can be left that the structural bytes reach."""
        most = -inf
        for start in range(1, len(text) + 1):
            structural -= text[start - 1] in STRUCTURE
            if structural < 0:
                break
            most = max(most, self._spelling.cost(text[start:]))
        return most

    def _in_parts(self, inside: tuple[Node, ...], structural: int) -> float:
        costs = [self._costs.of_node(part) for part in inside]
        later, most = sum(costs), -inf
        for part, cost in zip(inside, costs, strict=True):
            later -= cost
            most = max(most, self._left[structural][part] + later)
            structural -= int(min(self._needed.of_node(part), structural + 1))
            if structural < 0:
                break
        return most

    def _in_language(self, language: Regex) -> float:
        """The most that can be left anywhere inside, in bytes, which are no fewer than tokens."""
        found = self._languages.get(language)
        if found is None:
            found = _left_in(language) if language.is_plain else self._left_by_search(language)
            self._languages[language] = found
        return found

    def _left_by_search(self, language: Regex) -> float:
        """Of all states, how far the one that is farthest from an end is from it."""
        sources: dict[Regex, list[Regex]] = {language: []}
        todo = [language]
        while todo:
            state = todo.pop()
            for _, target in self._derivatives.steps(state):
                if target not in sources:
                    sources[target] = []
                    todo.append(target)
                sources[target].append(state)
            if len(sources) > _MAX_STATES or monotonic() > self._deadline:
                raise _TooLong
        left = -1.0
        nearest = [state for state in sources if state.nullable]
        seen = set(nearest)
        while nearest:
            left += 1
            farther = dict.fromkeys(s for state in nearest for s in sources[state] if s not in seen)
            nearest = list(farther)
            seen.update(nearest)
        return left


def _structural(regex: Regex) -> int:
    """In any text of it; fewer may be said than there are."""
    match regex:
        case Chars(charset=charset):
            return int(all(lo == hi and lo in STRUCTURE for lo, hi in charset.ranges))
        case Seq():
            return sum(map(_structural, parts(regex)))
        case Alt(members=members):
            return min(map(_structural, members))
        case Repeat(body=body, lo=lo):
            return lo * _structural(body)
        case _:
            return 0


def _left_in(regex: Regex) -> float:
    """Of a plain language: where alternatives are read at once, the shortest ends no later."""
    match regex:
        case Seq():
            most, later = 0.0, 0
            for part in reversed(tuple(parts(regex))):
                most = max(most, _left_in(part) + later)
                later += len(shortest(part) or "")
            return most
        case Alt(members=members):
            return max(map(_left_in, members))
        case Repeat(body=body, lo=lo):
            return _left_in(body) + max(lo - 1, 0) * len(shortest(body) or "")
        case _:
            return 0.0
