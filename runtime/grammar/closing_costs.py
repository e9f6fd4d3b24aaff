"""How few tokens each part of a grammar takes at the least, as far as is known; no requests.

Costs are of a simple way to spell the shortest text, not of the best one: bounds from above that
always come with the tokens themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import inf

from .regular import Regex, shortest
from .walk import Frame, Node, Thread

STRUCTURE = frozenset(b'{}[]:,"')
"""Bytes without which no part of a JSON text is left for the next one."""
# In compact JSON; overlapping pairs are found by looking ahead.
_NEVER_ADJACENT = re.compile(rb"[,:](?=[,:}\]])|[\[{](?=[,:])|[\]}](?=[\[{\":])")


def num_structural(text: bytes) -> int:
    return sum(byte in STRUCTURE for byte in text)


def num_advancing(text: bytes) -> int:
    """How many of them can be outside of strings: not two that never follow one another there."""
    barred: set[int] = set()
    for match in _NEVER_ADJACENT.finditer(text):
        barred |= {match.start(), match.start() + 1}
    return num_structural(bytes(b for i, b in enumerate(text) if i not in barred))


_MAX_COSTS = 10_000


class NotSpelled(Exception):
    """No tokens make up this text."""


class Spelling:
    """Texts as tokens, the longest first. Every byte is a token, or texts with it cost `inf`."""

    def __init__(self, token_bytes: Sequence[bytes], allowed: Sequence[bool]) -> None:
        """allowed: of the same length; False for tokens that are no text."""
        self._ids: dict[bytes, int] = {}
        for token_id, text in enumerate(token_bytes):
            if text and allowed[token_id]:
                self._ids.setdefault(text, token_id)
        self.max_bytes = max(map(len, self._ids), default=1)
        self.max_structural = max(map(num_advancing, self._ids), default=0)
        self._costs: dict[bytes, float] = {}

    def cost(self, text: bytes) -> float:
        """How many tokens; `inf` if there is no way to spell it."""
        found = self._costs.get(text)
        if found is None:
            if len(self._costs) >= _MAX_COSTS:  # texts of all grammars that ever were
                self._costs.clear()
            try:
                found = sum(1 for _ in self.tokens(text))
            except NotSpelled:
                found = inf
            self._costs[text] = found
        return found

    def token(self, text: bytes) -> int | None:
        """The one token that is this text, if there is one."""
        return self._ids.get(text)

    def tokens(self, text: bytes) -> Iterator[int]:
        """Raises `NotSpelled`."""
        start = 0
        while start < len(text):
            for end in range(min(len(text), start + self.max_bytes), start, -1):
                token_id = self._ids.get(text[start:end])
                if token_id is not None:
                    yield token_id
                    start = end
                    break
            else:
                raise NotSpelled(text)


class Costs:
    """Of the nodes below `root`, of frames and of threads: the tokens to their ends."""

    def __init__(self, root: Node, cost: Callable[[bytes], float]) -> None:
        """cost: of a text, in tokens or in what else is counted."""
        self._cost = cost
        self._languages: dict[Regex, bytes | None] = {}
        self._nodes: dict[Node, float] = {}
        self._frames: dict[Frame, float] = {}
        self._settle(root)

    def forget(self) -> None:
        """What was asked; the nodes' own costs stay."""
        self._frames.clear()
        self._languages.clear()

    def of_node(self, node: Node, count: int = 0) -> float:
        """After `count` repetitions."""
        if node.body is not None:
            missing = max(node.lo - count, 0)
            return missing * self._nodes[node.body] if missing else 0
        return self._nodes[node]

    def of_frame(self, frame: Frame | None) -> float:
        """Of the whole stack."""
        stack: list[Frame] = []
        while frame is not None and frame not in self._frames:
            stack.append(frame)
            frame = frame.after
        cost = 0.0 if frame is None else self._frames[frame]
        for frame in reversed(stack):
            cost += self.of_node(frame.node, frame.count)
            self._frames[frame] = cost
        return cost

    def of_thread(self, thread: Thread) -> float:
        terminal, after = thread
        return self.of_terminal(terminal) + self.of_frame(after)

    def ending(self, thread: Thread) -> Iterator[bytes]:
        """The texts that are of that cost together."""
        for terminal in self.terminals(thread):
            text = self.text_of(terminal)
            assert text is not None, thread
            yield text

    def terminals(self, thread: Thread) -> Iterator[bytes | Regex]:
        """Whose shortest texts they are."""
        terminal, frame = thread
        yield terminal
        while frame is not None:
            yield from self._terminals(frame.node, frame.count)
            frame = frame.after

    def of_terminal(self, terminal: bytes | Regex) -> float:
        text = self.text_of(terminal)
        return inf if text is None else self._cost(text)

    def text_of(self, terminal: bytes | Regex) -> bytes | None:
        """The shortest; None if there is none."""
        if isinstance(terminal, bytes):
            return terminal
        if terminal not in self._languages:
            text = shortest(terminal)
            self._languages[terminal] = None if text is None else text.encode("latin-1")
        return self._languages[terminal]

    def _terminals(self, node: Node, count: int) -> Iterator[bytes | Regex]:
        """Of the cheapest derivation, which is finite: each choice leads to a cheaper node."""
        todo = [(node, count)]
        while todo:
            node, count = todo.pop()
            if node.text is not None:
                yield node.text
            elif node.language is not None:
                yield node.language
            elif node.parts is not None:
                todo += [(part, 0) for part in reversed(node.parts)]
            elif node.options is not None:
                todo.append((self._cheapest(node.options), 0))
            else:
                assert node.body is not None, node
                todo += [(node.body, 0)] * max(node.lo - count, 0)

    def _cheapest(self, options: Sequence[Node]) -> Node:
        return min(options, key=self._rank)

    def _rank(self, node: Node) -> tuple[float, int]:
        """Equal costs do not lead in a circle: the one that was settled first."""
        return self._nodes[node], self._order[node]

    def _settle(self, root: Node) -> None:
        """Costs from below: a node is asked again when something in it became cheaper."""
        inside = {node: list(parts_of(node)) for node in below(root)}
        above: dict[Node, list[Node]] = {node: [] for node in inside}
        for node, parts in inside.items():
            for part in parts:
                above[part].append(node)
        self._nodes = dict.fromkeys(inside, inf)
        self._order: dict[Node, int] = dict.fromkeys(inside, 0)
        todo = list(inside)
        while todo:
            node = todo.pop()
            cost = self._now(node)
            if cost < self._nodes[node]:
                self._nodes[node] = cost
                self._order[node] = 1 + max((self._order[p] for p in inside[node]), default=0)
                todo += above[node]

    def _now(self, node: Node) -> float:
        if node.text is not None:
            return self._cost(node.text)
        if node.language is not None:
            return self.of_terminal(node.language)
        if node.parts is not None:
            return sum(self._nodes[part] for part in node.parts)
        if node.options is not None:
            return min((self._nodes[option] for option in node.options), default=inf)
        assert node.body is not None, node
        return self._nodes[node.body] * node.lo if node.lo else 0


def parts_of(node: Node) -> Iterator[Node]:
    yield from node.parts or ()
    yield from node.options or ()
    if node.body is not None:
        yield node.body


def below(root: Node) -> Iterator[Node]:
    """`root` and all that it leads to, each once."""
    seen = {root}
    todo = [root]
    while todo:
        node = todo.pop()
        yield node
        for part in parts_of(node):
            if part not in seen:
                seen.add(part)
                todo.append(part)
