"""Which of two equal implementations runs: the native one, or Python's where that isn't built.

The types are those of tree.py, slots.py and books.py in either case, and these files say what
each does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .books import Books
    from .slots import SlotPool
    from .tree import Handle, Node, RadixTree, attach, common_len, detach, split, trim
else:
    try:
        from ._core import (
            Books,
            Handle,
            Node,
            RadixTree,
            SlotPool,
            attach,
            common_len,
            detach,
            split,
            trim,
        )
    except ImportError:  # built without a compiler, or for another machine
        from .books import Books
        from .slots import SlotPool
        from .tree import Handle, Node, RadixTree, attach, common_len, detach, split, trim

__all__ = [
    "Books",
    "Handle",
    "Node",
    "RadixTree",
    "SlotPool",
    "attach",
    "common_len",
    "detach",
    "split",
    "trim",
]
