"""A node on its way through the executor, with everything that waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from .branches import BranchGroup
from .ir import Fork, Node
from .values import GatheredVariable, Segment, Variable


@dataclass(slots=True)
class Entry:
    """`origin` is the place in the program that made the node; `group` is that of a fork or
    join, `gathered` what a join sets."""

    node: Node
    origin: str
    segment: Segment | None = None
    variable: Variable | None = None
    group: BranchGroup | None = None
    gathered: tuple[GatheredVariable, ...] = ()

    def fail(self, error: BaseException) -> None:
        """The node will never run, or did not end well: tell all that wait for it."""
        if self.segment is not None:
            self.segment.text.end(error)
        for variable in (self.variable, *self.gathered):
            if variable is not None:
                variable.done.set_exception(error)
        if isinstance(self.node, Fork) and self.group is not None:
            self.group.stop(error)
