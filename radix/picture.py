"""An ASCII picture of a cache for failing tests and docs; reads it and changes nothing.

slots 16 = 9 free + 6 cached (1 evictable) + 1 in use + 0 pending; last step 3
namespace ('tenant-a',)  locks=2
├─ [5 6 7 8] 4 tokens  locks=2
│  └─ [9] 1 token  locks=1 step=4
└─ [3] 1 token
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from .cache import RadixCache
from .tree import Node

_MAX_IDS = 8
_MAX_WIDTH = 200  # where the number of lines is limited, too


def picture(cache: RadixCache, max_lines: int | None = None) -> str:
    """The counters, then every namespace's tree: runs, lengths, locks and promises.

    With `max_lines` it ends after so many, also where a broken tree has no end.
    """
    lines = _lines(cache)
    if max_lines is None:
        return "\n".join(lines)
    shown = [line[:_MAX_WIDTH] for line in islice(lines, max_lines)]
    return "\n".join(shown if next(lines, None) is None else [*shown, "…"])


def _lines(cache: RadixCache) -> Iterator[str]:
    yield (
        f"slots {cache.num_slots} = {cache.num_free} free"
        f" + {cache.num_cached} cached ({cache.num_evictable} evictable)"
        f" + {cache.num_in_use} in use + {cache.num_pending} pending; last step {cache.last_step}"
    )
    for namespace, root in cache.tree.roots.items():
        yield f"namespace {namespace}{_marks(root)}"
        yield from _branches(root)


def _branches(root: Node) -> Iterator[str]:
    """One line a node below `root`, with no recursion: a long chat is a deep chain."""
    stack = _siblings(root, "")
    while stack:
        node, indent, last = stack.pop()
        length = f"{len(node.key)} token{'s' if len(node.key) != 1 else ''}"
        yield f"{indent}{'└─' if last else '├─'} {_ids(node)} {length}{_marks(node)}"
        stack += _siblings(node, indent + ("   " if last else "│  "))


def _siblings(parent: Node, indent: str) -> list[tuple[Node, str, bool]]:
    children = [(child, indent, False) for child in parent.children.values()]
    if children:
        children[-1] = (children[-1][0], indent, True)
    return children[::-1]


def _ids(node: Node) -> str:
    ids = [str(i) for i in node.key[:_MAX_IDS]]
    if len(node.key) > _MAX_IDS:
        ids[-2:] = ["..", str(node.key[-1])]
    return f"[{' '.join(ids)}]"


def _marks(node: Node) -> str:
    marks = f"  locks={node.lock_count}" if node.lock_count else ""
    marks += f" leases={node.lease_count}" if node.lease_count else ""
    return marks + (f" step={node.step}" if node.step is not None else "")
