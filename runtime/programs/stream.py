"""One stream as its program sees it: nodes go in, variables and segments of text come out.

Everything here happens in the program's thread and in program order: what a node leaves
exists from the moment the node is handed in, so a reader always has something to wait on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import EngineClosed, InvalidRequest
from .branches import BranchGroup
from .entry import Entry
from .ir import Append, Fork, Gen, Join, RoleBegin, RoleEnd, Select
from .lane import Lane
from .values import AssignedVariable, Parse, RunRecord, Segment, Variable, gathered

if TYPE_CHECKING:
    from .executor import Executor


class Stream:
    """The state of a program, or of one branch of a fork."""

    def __init__(self, executor: Executor, lane: Lane) -> None:
        self.executor = executor
        self.lane = lane
        self.variables: dict[str, Variable] = {}
        self.open_role: str | None = None
        self._num_inherited = len(lane.segments)

    @classmethod
    def root(cls, executor: Executor) -> Stream:
        return cls(executor, Lane(executor, RunRecord()))

    def submit(
        self,
        node: Append | RoleBegin | RoleEnd | Gen | Select,
        *,
        origin: str,
        parse: Parse | None = None,
    ) -> None:
        """Hand in a node. `origin` tells where the program made it; `parse` reads the text of
        its variable as a type."""
        segment, variable = Segment(), None
        match node:
            case RoleBegin(role):
                if self.open_role is not None:
                    raise InvalidRequest(f"role {role!r} begins inside role {self.open_role!r}")
                segment = Segment("open", role=role)
                self.open_role = role
            case RoleEnd():
                if self.open_role is None:
                    raise InvalidRequest("a role ends, but none is open")
                segment = Segment("close", role=self.open_role)
                self.open_role = None
            case Gen(name=str(name)) | Select(name=str(name)):
                is_text = isinstance(node, Select) or node.sampling.n == 1
                segment = Segment(name=name if is_text else None)
                variable = Variable(name, segment.text if is_text else None, parse)
                self.variables[name] = variable
            case _:
                pass
        self.lane.hand_in(Entry(node, origin, segment=segment, variable=variable), [segment])

    def assign(self, name: str, value: object) -> None:
        self.variables[name] = AssignedVariable(name, value)

    def fork(self, node: Fork, *, origin: str) -> Forked:
        """Open branches; each begins as this stream is when the node's turn comes."""
        group = BranchGroup()
        inherited = self.lane.segments.so_far()
        group.lanes = tuple(
            Lane(self.executor, self.lane.record, (group, index), inherited)
            for index in range(node.size)
        )
        streams = tuple(Stream(self.executor, lane) for lane in group.lanes)
        for stream in streams:
            stream.variables = self.variables.copy()
            stream.open_role = self.open_role
        self.lane.hand_in(Entry(node, origin, group=group), [])
        return Forked(group, streams)

    def join(self, node: Join, forked: Forked, *, origin: str) -> None:
        """End the branches; this stream takes over from them as `node.mode` says."""
        if forked.is_joined:
            raise InvalidRequest("these branches have been joined already")
        entry = Entry(node, origin, group=forked.group)
        segments: list[Segment] = []
        if node.mode == "gather_variable":
            found = gathered(self.variables, [stream.variables for stream in forked.streams])
            entry.gathered = tuple(found.values())
            self.variables.update(found)
        else:
            for index, stream in enumerate(forked.streams):
                self._check_same_role(index, stream)
                segments += stream.lane.segments.so_far()[stream._num_inherited :]
        forked.is_joined = True
        for stream in forked.streams:
            stream.lane.close()
        self.lane.hand_in(entry, segments)

    def _check_same_role(self, index: int, branch: Stream) -> None:
        if branch.open_role != self.open_role:
            raise InvalidRequest(
                f"branch {index} can't be appended: it is in role {branch.open_role!r}, "
                f"its parent in {self.open_role!r}"
            )

    def abandon(self, error: Exception) -> None:
        """The program ends with `error`: cancel what still runs, in its branches as well."""
        self.lane.close(error)
        self._stop(self.lane.stop, error)

    def cancel(self, error: Exception) -> None:
        """What runs now ends with `error`, and so does what the program does next."""
        self._stop(self.lane.stop, error)

    def abandon_branches(self, forked: Forked, error: Exception) -> None:
        """The program goes on without these branches; it knows of `error`."""
        self.lane.record.acknowledge(error)
        self._stop(forked.group.stop, error)

    def _stop(self, stop: Callable[[BaseException], None], error: Exception) -> None:
        # A closed executor has already stopped all that was running.
        with suppress(EngineClosed):
            self.executor.post(stop, error)


@dataclass(slots=True)
class Forked:
    """The branches of one fork, in order."""

    group: BranchGroup
    streams: tuple[Stream, ...]
    is_joined: bool = False
