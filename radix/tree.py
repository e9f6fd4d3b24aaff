"""The radix tree: nodes, points, and the moves that keep its shape.

Knows what a node carries, but not when it may be locked, filled or evicted: see cache.py.
Token ids and slots only, never text. What is written here radix/csrc does as well, and core.py
says which of the two runs.

    ()                          namespace root, end = 0
    └─ [5 6 7 8]                start = 0, end = 4
       ├─ [9]                   start = 4, end = 5      spells 5 6 7 8 9
       └─ [1 2 3]               start = 4, end = 7      spells 5 6 7 8 1 2 3
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from .types import IntArray, Namespace

_NOTHING: IntArray = np.empty(0, dtype=np.int32)
_ID_BYTES = 4


@dataclass(eq=False, repr=False, slots=True)
class Node:
    """A run of tokens below `parent`, with the slots that hold their KV.

    `key` and `slots` are the node's own arrays, replaced and never written to.
    `lock_count` counts the locked handles at or below this node, so child <= parent;
    `lease_count` those of them that are leases. `run` numbers what came into the tree at once,
    of which a split makes two nodes.
    """

    key: IntArray
    slots: IntArray
    parent: Node | None
    end: int
    """Tokens from the root to the end of this node."""
    step: int | None = None
    """The step that fills the slots; None once it has settled."""
    namespace: Namespace | None = None
    """Set on roots only."""
    children: dict[int, Node] = field(default_factory=dict[int, "Node"])
    """By the first id of the child's key."""
    lock_count: int = 0
    lease_count: int = 0
    run: int = -1
    last_access: int = 0
    """Logical time at which the last lock on this node was given up."""
    use_count: int = 0
    """Requests that have used this node, and with it all above it."""
    priority: int = 0
    """The highest of those requests' priorities."""
    last_used_s: float = 0.0
    """When that was, by the clock of the cache."""
    ticket: int | None = None
    """This node's valid entry among the evictable leaves; None while it isn't one of them."""

    @property
    def start(self) -> int:
        return self.end - len(self.key)

    @property
    def is_root(self) -> bool:
        return self.namespace is not None

    def __repr__(self) -> str:
        return (
            f"Node({self.start}..{self.end}, ids {self.key}, locks={self.lock_count}, "
            f"step={self.step})"
        )


@dataclass(frozen=True, slots=True)
class Handle:
    """A point in the tree, `length` tokens below its namespace's root.

    It ends inside or at the end of `node`. A split keeps the node's identity as the lower
    half, so a handle survives splits of its node; `RadixTree.locate` finds the half it ends
    in. A locked handle ends at its node's end and stays good; any other, until an eviction.
    """

    node: Node
    length: int


def common_len(a: IntArray, b: IntArray) -> int:
    """Length of the common prefix of two arrays."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def ancestry(node: Node) -> Iterator[Node]:
    """`node` and everything above it, the root last."""
    at: Node | None = node
    while at is not None:
        yield at
        at = at.parent


def subtree(node: Node) -> Iterator[Node]:
    """`node` and everything below it, parents before children."""
    stack = [node]
    while stack:
        at = stack.pop()
        yield at
        stack.extend(at.children.values())


class RadixTree:
    """The roots, by namespace, and all that hangs below them."""

    def __init__(self) -> None:
        self.roots: dict[Namespace, Node] = {}

    def origin(self, namespace: Namespace) -> Handle:
        """The root of `namespace`. An unknown one gets a root that `plant` may register."""
        root = self.roots.get(namespace)
        return Handle(root or Node(_NOTHING, _NOTHING, None, 0, namespace=namespace), 0)

    def plant(self, root: Node) -> Node:
        """The registered root of this root's namespace: it becomes that if there is none."""
        assert root.namespace is not None, f"{root} is no longer in the tree"
        return self.roots.setdefault(root.namespace, root)

    def uproot(self, root: Node) -> None:
        """Forget a root that nothing hangs below and nobody has locked."""
        assert root.namespace is not None and not root.children and not root.lock_count, root
        del self.roots[root.namespace]

    def holds(self, node: Node) -> bool:
        """Whether `node` hangs below a registered root (or is one)."""
        while node.parent is not None:
            node = node.parent
        return node.namespace is not None and self.roots.get(node.namespace) is node

    def locate(self, handle: Handle) -> Handle:
        """The same point, named by the node in which it ends (or whose end it is)."""
        node, length = handle.node, handle.length
        assert length <= node.end, f"{node} has been trimmed above the handle's end {length}"
        while length <= node.start and node.parent is not None:
            node = node.parent
        if node.namespace is not None:
            node = self.roots.get(node.namespace, node)
        return Handle(node, length)

    def descend(self, handle: Handle, ids: IntArray) -> Handle:
        """The deepest point that `ids` lead to from `handle`. Reads only."""
        point = self.locate(handle)
        node, length = point.node, point.length
        run = node.key[length - node.start :]
        spelt, taken = np.asarray(ids, dtype=np.int32).tobytes(), 0
        while True:
            # Of short runs bytes cost far less to compare than arrays, of long ones no more.
            whole = spelt.startswith(run.tobytes(), _ID_BYTES * taken)
            common = len(run) if whole else common_len(run, ids[taken:])
            length += common
            taken += common
            if common < len(run) or taken == len(ids):
                return Handle(node, length)
            child = node.children.get(int(ids[taken]))
            if child is None:
                return Handle(node, length)
            node, run = child, child.key

    def next_ids(self, point: Handle) -> list[int]:
        """Every id by which the tree goes on from a point that `descend` has found."""
        node, length = point.node, point.length
        return list(node.children) if length == node.end else [int(node.key[length - node.start])]

    def nodes(self) -> Iterator[Node]:
        """Every node except the roots, parents before children."""
        for root in self.roots.values():
            for node in subtree(root):
                if node is not root:
                    yield node

    def topmost(self, chosen: Callable[[Node], bool]) -> list[Node]:
        """The chosen nodes that have no chosen node above them."""
        found: list[Node] = []
        stack = [child for root in self.roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            if chosen(node):
                found.append(node)
            else:
                stack.extend(node.children.values())
        return found


def attach(node: Node) -> None:
    """Hang a new node below its parent."""
    first, parent = int(node.key[0]), node.parent
    assert parent is not None and node.start == parent.end, node
    assert first not in parent.children, f"{parent.children[first]} already begins like {node}"
    parent.children[first] = node


def detach(leaf: Node) -> Node:
    """Cut a leaf off and return its former parent."""
    parent = leaf.parent
    assert parent is not None and not leaf.children, leaf
    del parent.children[int(leaf.key[0])]
    leaf.parent = None
    return parent


def split(node: Node, length: int) -> Node:
    """Cut a node's run at `length` tokens from the root; returns the new upper half.

        parent                    parent
        └─ node  [a b c d]   ─▶   └─ upper  [a b]
           └─ …                      └─ node  [c d]
                                        └─ …

    Every lock and every use of the node covers the upper half as well, and the same step fills
    both.
    """
    parent, cut = node.parent, length - node.start
    assert parent is not None and 0 < cut < len(node.key), (node, length)
    upper = Node(
        key=node.key[:cut].copy(),
        slots=node.slots[:cut].copy(),
        parent=parent,
        end=length,
        step=node.step,
        lock_count=node.lock_count,
        lease_count=node.lease_count,
        run=node.run,
        last_access=node.last_access,
        use_count=node.use_count,
        priority=node.priority,
        last_used_s=node.last_used_s,
    )
    parent.children[int(upper.key[0])] = upper
    node.key, node.slots, node.parent = node.key[cut:].copy(), node.slots[cut:].copy(), upper
    upper.children[int(node.key[0])] = node
    return upper


def trim(leaf: Node, n: int) -> IntArray:
    """Drop the last `n` tokens of a leaf that has more, and return their slots."""
    keep = len(leaf.key) - n
    assert n > 0 and keep > 0 and not leaf.children, (leaf, n)
    dropped = leaf.slots[keep:]
    leaf.key, leaf.slots = leaf.key[:keep].copy(), leaf.slots[:keep].copy()
    leaf.end -= n
    return dropped
