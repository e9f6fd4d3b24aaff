"""How much one token can lengthen the shortest ending, at the most, wherever it stands."""

from __future__ import annotations

from math import inf
from time import monotonic

from .closing_costs import Costs, Spelling, below
from .regular import Alt, Derivatives, Regex, Repeat, Seq, parts, shortest
from .walk import Node

_MAX_STATES = 2_000
_LIMIT_S = 0.5


def max_growth(root: Node, costs: Costs, spelling: Spelling) -> float:
    """In tokens; `inf` where it takes too long to say.

    A token can leave the parts that are being read, which makes an ending shorter, and can begin
    one new part, as far in as it has bytes. What is then left of that part, less what it cost
    before it began, is the growth.
    """
    growth = _Growth(root, costs, spelling)
    try:
        return max(growth.of(node) for node in below(root))
    except _TooLong:
        return inf


class _TooLong(Exception):
    pass


class _Growth:
    def __init__(self, root: Node, costs: Costs, spelling: Spelling) -> None:
        self._costs, self._spelling = costs, spelling
        self._bytes = Costs(root, len)
        self._languages: dict[Regex, float] = {}
        self._left: dict[tuple[Node, int], float] = {}
        self._derivatives = Derivatives(None)
        self._deadline = monotonic() + _LIMIT_S

    def of(self, node: Node) -> float:
        """Of a token that begins the node, or goes on inside it if it is a terminal."""
        if node.text is not None:
            return self._in_text(node.text)
        if node.language is not None:
            return self._in_language(node.language)
        return max(0, self._after(node, self._spelling.max_bytes) - self._costs.of_node(node))

    def _after(self, node: Node, length: int) -> float:
        """The most that can be left of `node` once 1 to `length` of its bytes are read; -inf if
        there is nothing to read."""
        key = (node, length)
        found = self._left.get(key)
        if found is None:
            if monotonic() > self._deadline:
                raise _TooLong
            self._left[key] = -inf  # of a part that is met again inside itself, with no byte read
            found = self._left[key] = self._find(node, length)
        return found

    def _find(self, node: Node, length: int) -> float:
        if length <= 0:
            return -inf
        if node.text is not None:
            return self._in_text(node.text)
        if node.language is not None:
            return self._in_language(node.language)
        if node.options is not None:
            return max((self._after(option, length) for option in node.options), default=-inf)
        if node.parts is not None:
            return self._in_parts(node.parts, length)
        assert node.body is not None, node
        later = max(node.lo - 1, 0)
        return self._after(node.body, length) + (
            later * self._costs.of_node(node.body) if later else 0
        )

    def _in_text(self, text: bytes) -> float:
        return max(self._spelling.cost(text[start:]) for start in range(1, len(text) + 1))

    def _in_parts(self, parts: tuple[Node, ...], length: int) -> float:
        costs = [self._costs.of_node(part) for part in parts]
        most = -inf
        for index, part in enumerate(parts):
            most = max(most, self._after(part, length) + sum(costs[index + 1 :]))
            length -= int(min(self._bytes.of_node(part), length))
            if length <= 0:
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
        """State by state."""
        reached = {language}
        todo = [language]
        while todo:
            for _, target in self._derivatives.steps(todo.pop()):
                if target not in reached:
                    reached.add(target)
                    todo.append(target)
            if len(reached) > _MAX_STATES or monotonic() > self._deadline:
                raise _TooLong
        costs = (self._costs.of_terminal(state) for state in reached)
        return max(cost for cost in costs if cost < inf)


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
