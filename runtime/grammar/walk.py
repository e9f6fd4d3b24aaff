"""Walks a grammar byte by byte, along all derivations at once; knows no tokens.

A walk is a set of threads. Each is inside one terminal, and knows what has to come after it: a
stack of nodes, shared between threads. Left recursion is not allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .cfg import Call, Choice, Expr, Grammar, Lexeme, Repeat, Sequence, Text
from .regular import EPSILON, NOTHING, Derivatives, Regex, utf8_bytes

MAX_THREADS = 2_000
_MAX_LISTED = 64  # texts of one choice, each a thread of its own
_MAX_DEPTH = 100  # of texts that begin alike within such texts


class TooManyThreads(Exception):
    """The grammar is too ambiguous here to be followed."""


@dataclass(eq=False, slots=True, repr=False)
class Node:
    """A part of a grammar, perhaps of itself as well; compared by identity.

    Of `text` (a terminal), `language` (one over bytes), `parts` (a sequence), `options` (a
    choice) and `body` (a repetition between lo and hi times) one is set; a rule is the node of
    its expression.
    """

    text: bytes | None = None
    language: Regex | None = None
    parts: tuple[Node, ...] | None = None
    options: tuple[Node, ...] | None = None
    body: Node | None = None
    lo: int = 0
    hi: int | None = None


@dataclass(eq=False, slots=True, repr=False)
class Frame:
    """`node` has to come, `count` of whose repetitions are done; then `after`.

    There is one frame for each (node, count, after), so frames are compared by identity.
    """

    node: Node
    count: int
    after: Frame | None
    starts: tuple[Thread, ...] | None = None
    can_end: bool = False
    below: dict[tuple[Node, int], Frame] = field(default_factory=lambda: {})


Thread = tuple[bytes | Regex, Frame | None]
"""What is left of the terminal that is being read, and what comes after it."""

Threads = frozenset[Thread]

Move = tuple[tuple[Thread, ...], bool]
"""The threads that one becomes, and whether the text may end with it."""


_NOWHERE: Move = ((), False)


class Walk:
    """The threads of one grammar, and where they go. Keeps what it has computed."""

    def __init__(self, grammar: Grammar) -> None:
        self._roots: dict[tuple[Node, int], Frame] = {}
        self.derivatives = Derivatives(None)
        self._moves: dict[Thread, dict[int, Move]] = {}
        self._opened_after: dict[tuple[Regex, Frame | None], Move] = {}
        self.num_moves = 0  # that are remembered
        self.root = nodes_of(grammar)
        self._start = self._frame(self.root, 0, None)

    def start(self) -> tuple[Threads, bool]:
        """Before the first byte; and whether the empty text is whole."""
        starts, can_end = self.opened(self._start)
        return frozenset(starts), can_end

    def step(self, threads: Threads, byte: int) -> tuple[Threads, bool]:
        """After `byte`; and whether the text is whole then. No threads, and not whole: the
        grammar forbids it. Raises `TooManyThreads`."""
        found: set[Thread] = set()
        is_whole = False
        for thread in threads:
            moved, ends = self._moved(thread, byte)
            found.update(moved)
            is_whole |= ends
        if len(found) > MAX_THREADS:
            raise TooManyThreads
        return frozenset(found), is_whole

    def forget(self) -> None:
        """All that was computed; threads that somebody holds stay good."""
        self.derivatives = Derivatives(None)
        self._roots.clear()
        self._moves.clear()
        self._opened_after.clear()
        self.num_moves = 0
        self._start = self._frame(self.root, 0, None)

    def _moved(self, thread: Thread, byte: int) -> Move:
        moves = self._moves.get(thread)
        if moves is None:
            moves = self._moves[thread] = {}
        move = moves.get(byte)
        if move is None:
            self.num_moves += 1
            move = moves[byte] = self._move(thread, byte)
        return move

    def _move(self, thread: Thread, byte: int) -> Move:
        terminal, after = thread
        if isinstance(terminal, bytes):
            if terminal[0] != byte:
                return _NOWHERE
            if len(terminal) > 1:
                return ((terminal[1:], after),), False
            return self.opened(after)
        rest = self.derivatives.of(terminal, byte)
        if rest is NOTHING:
            return _NOWHERE
        found = self._opened_after.get((rest, after))  # one for all bytes that lead there
        if found is None:
            found = self._opened_after[rest, after] = self._left(rest, after)
        return found

    def _left(self, rest: Regex, after: Frame | None) -> Move:
        if not rest.nullable:
            return ((rest, after),), False
        starts, can_end = self.opened(after)
        kept = () if rest is EPSILON else ((rest, after),)
        return (*kept, *starts), can_end

    def opened(self, frame: Frame | None) -> Move:
        """The terminals that can come next, and whether none has to."""
        if frame is None:
            return (), True
        if frame.starts is None:
            starts: dict[Thread, None] = {}
            frame.starts = ()
            frame.can_end = self._open(frame, starts)
            frame.starts = tuple(starts)
        return frame.starts, frame.can_end

    def _open(self, frame: Frame, starts: dict[Thread, None]) -> bool:
        """Depth first over the nodes that come next, without recursion."""
        todo: list[Frame | None] = [frame]
        seen: set[Frame] = set()
        can_end = False
        while todo:
            current = todo.pop()
            if current is None:
                can_end = True
            elif current not in seen:
                seen.add(current)
                node = current.node
                if node.text is not None:
                    starts[node.text, current.after] = None
                elif node.language is not None:
                    starts[node.language, current.after] = None
                    if node.language.nullable:
                        todo.append(current.after)
                else:
                    todo += self._inside(current)
        return can_end

    def _inside(self, frame: Frame) -> Iterator[Frame | None]:
        node, after = frame.node, frame.after
        if node.options is not None:
            for option in node.options:
                yield self._frame(option, 0, after)
        elif node.parts is not None:
            for part in reversed(node.parts):
                after = self._frame(part, 0, after)
            yield after
        else:
            assert node.body is not None, node
            if frame.count >= node.lo:
                yield after
            if node.hi is None or frame.count < node.hi:
                # Without an upper bound, counts beyond the lower one are all the same.
                count = frame.count + 1 if node.hi is not None else min(frame.count + 1, node.lo)
                yield self._frame(node.body, 0, self._frame(node, count, after))

    def _frame(self, node: Node, count: int, after: Frame | None) -> Frame:
        known = self._roots if after is None else after.below
        frame = known.get((node, count))
        if frame is None:
            frame = known[node, count] = Frame(node, count, after)
        return frame


def nodes_of(grammar: Grammar) -> Node:
    """The root's node; rules that call each other become nodes in a cycle."""
    rules = {name: Node() for name in grammar.rules}
    for name, expr in grammar.rules.items():
        _fill(rules[name], expr, rules)
    return rules[grammar.root]


def _fill(node: Node, expr: Expr, rules: Mapping[str, Node]) -> None:
    match expr:
        case Text(text):
            node.text = text.encode()
        case Lexeme(language):
            node.language = utf8_bytes(language)
        case Call(rule):
            node.parts = (rules[rule],)
        case Sequence(parts):
            node.parts = tuple(_node(part, rules) for part in parts)
        case Choice(options):
            texts = [option.text.encode() for option in options if isinstance(option, Text)]
            listed = options
            if len(texts) > _MAX_LISTED:
                listed = tuple(option for option in options if not isinstance(option, Text))
                node.options = tuple(_by_beginning(texts, 0))
            node.options = (*(node.options or ()), *(_node(option, rules) for option in listed))
        case Repeat(body, lo, hi):
            node.body, node.lo, node.hi = _node(body, rules), lo, hi


def _node(expr: Expr, rules: Mapping[str, Node]) -> Node:
    if isinstance(expr, Call):
        return rules[expr.rule]
    node = Node()
    _fill(node, expr, rules)
    return node


def _by_beginning(texts: list[bytes], depth: int) -> list[Node]:
    """Nodes of these texts, of which those that begin alike are one: a thread for each of
    thousands would be too many."""
    groups: dict[bytes, list[bytes]] = {}
    for text in texts:
        groups.setdefault(text[:1], []).append(text)
    found: list[Node] = []
    for begin, group in groups.items():
        if not begin:
            found.append(Node(parts=()))
        elif len(group) == 1 or depth == _MAX_DEPTH:
            found += [Node(text=text) for text in group]
        else:
            common = _common(min(group), max(group))  # all of them begin as these two do
            rests = [text[len(common) :] for text in group]
            rest = Node(options=tuple(_by_beginning(rests, depth + 1)))
            found.append(Node(parts=(Node(text=common), rest)))
    return found


def _common(one: bytes, other: bytes) -> bytes:
    """What both begin with."""
    differs = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return one[: next(differs, min(len(one), len(other)))]


class Acceptance:
    """Whether texts are derived by a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self._walk = Walk(grammar)

    def accepts(self, text: str) -> bool:
        """Of the whole text. Raises `TooManyThreads`."""
        threads, is_whole = self._walk.start()
        for byte in text.encode():
            threads, is_whole = self._walk.step(threads, byte)
            if not threads and not is_whole:
                return False
        return is_whole
