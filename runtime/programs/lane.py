"""Runs the nodes of one stream in order, on the executor's loop; owns its tokens and error.

Nodes that wait cost no task: the coroutine lives only while there is something to run.
After an error nothing runs any more, and whoever waits, or comes later, gets the error.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InvalidRequest, RequestAborted
from ..messages import Usage
from .backend import TextPiece
from .branches import BranchGroup
from .entry import Entry
from .ir import Append, Fork, Gen, Join, RoleBegin, RoleEnd, Select
from .steps import run_gen, run_select
from .tokens import TokenState
from .values import RunRecord, Segment
from .waiting import Log

if TYPE_CHECKING:
    from .executor import Executor


class Lane:
    """`hand_in` and `close` are for the program's thread, the rest is the loop's.

    `membership` is the group and index of a branch; `inherited` the segments it begins with.
    """

    def __init__(
        self,
        executor: Executor,
        record: RunRecord,
        membership: tuple[BranchGroup, int] | None = None,
        inherited: Sequence[Segment] = (),
    ) -> None:
        self.segments = Log(inherited)
        self.record = record
        self.error: BaseException | None = None
        self._executor = executor
        self._backend = executor.backend
        self._membership = membership
        self._lock = threading.Lock()  # guards queue, is_scheduled, is_closed, error, segments
        self._queue: deque[Entry] = deque()
        self._is_scheduled = False
        self._is_closed = False
        self._groups: list[BranchGroup] = []
        self._current: Entry | None = None
        self._task: asyncio.Task[None] | None = None
        self._tokens = TokenState(self._backend.encode)
        self._roles: tuple[str, ...] = ()
        self._close_marker = ""
        self._num_inherited = (0, 0)  # tokens' items and roles
        self._may_start = asyncio.Event()
        if membership is None:
            self._may_start.set()

    def hand_in(self, entry: Entry, segments: Sequence[Segment]) -> None:
        """Run `entry` after all others; its text is that of `segments`."""
        with self._lock:
            if self._is_closed:
                raise InvalidRequest("the program, or this branch of it, has ended")
            error = self.error
            if error is None:
                if not self._is_scheduled:
                    self._executor.post(self._start)
                    self._is_scheduled = True
                self._queue.append(entry)
                for segment in segments:
                    self.segments.append(segment)
        if error is not None:
            entry.fail(error)

    def close(self, error: Exception | None = None) -> None:
        """No more entries will come, because of `error` if there is one."""
        with self._lock:
            self._is_closed = True
            self.segments.end(error)

    def stop(self, error: BaseException) -> None:
        """End with `error`: whoever waits gets it, what runs is cancelled, so are branches.

        Only the first error counts.
        """
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            waiting, self._queue = self._queue, deque()
            self.segments.end(error)
        if self._current is not None:
            self._current.fail(error)
        for entry in waiting:
            entry.fail(error)
        for group in self._groups:
            group.stop(error)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def finish(self) -> None:
        """Wait until all that was handed in is done, in the branches too.

        Raises the first error, of this lane or of its branches, that the program has not
        met.
        """
        await self.idle()
        errors: list[BaseException | None] = [self.error]
        for group in tuple(self._groups):
            try:
                await group.finish()
            except Exception as error:
                errors.append(error)
        for unmet in errors:
            if unmet is not None and not self.record.has_met(unmet):
                raise unmet

    async def drain(self) -> None:
        """Wait until nothing runs any more, in the branches too, whatever became of it."""
        await self.idle()
        for group in tuple(self._groups):
            for branch in group.lanes:
                await branch.drain()

    async def sync(self) -> None:
        """Wait until all that was handed in to this very lane is done; raise its error."""
        await self.idle()
        if self.error is not None:
            raise self.error

    async def idle(self) -> None:
        """Wait until nothing of this lane runs, whatever became of it."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    def _start(self) -> None:
        if self.error is None:
            self._task = self._executor.start(self, self._run())

    async def _run(self) -> None:
        try:
            await self._may_start.wait()
            while (entry := self._next()) is not None:
                await self._run_entry(entry)
        except asyncio.CancelledError:
            if self.error is None:
                self._failed(RequestAborted("the backend cancelled the request"))

    def _next(self) -> Entry | None:
        with self._lock:
            self._current = self._queue.popleft() if self._queue else None
            if self._current is None:
                self._is_scheduled = False
            return self._current

    async def _run_entry(self, entry: Entry) -> None:
        try:
            await self._execute(entry)
        except Exception as error:
            error.add_note(f"in the node that was created at {entry.origin}")
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if self._membership is None:
            self.stop(error)
        else:
            group, index = self._membership
            group.branch_failed(index, error)

    async def _execute(self, entry: Entry) -> None:
        node = entry.node
        match node:
            case Append():
                self._append(entry, TextPiece(node.text, node.control))
            case RoleBegin(role):
                await self._begin_role(entry, role)
            case RoleEnd():
                self._append(entry, TextPiece(self._close_marker, control=True))
            case Gen() | Select():
                await self._produce(node, entry)
            case Fork():
                self._fork(entry)
            case Join():
                await self._join(node, entry)

    async def _begin_role(self, entry: Entry, role: str) -> None:
        roles = (*self._roles, role)
        markers = await self._backend.role_markers(roles)
        self._roles, self._close_marker = roles, markers.close
        self._append(entry, TextPiece(markers.open, control=True))

    def _append(self, entry: Entry, piece: TextPiece) -> None:
        assert entry.segment is not None, entry
        self._tokens.append_text(piece)
        if piece.text:
            entry.segment.text.append(piece.text)
        entry.segment.text.end()

    async def _produce(self, node: Gen | Select, entry: Entry) -> None:
        assert entry.segment is not None, entry
        text = entry.segment.text
        if isinstance(node, Gen):
            outputs = await run_gen(self._backend, self._tokens, node, text, self._count)
        else:
            outputs = await run_select(self._backend, self._tokens, node)
            text.append(outputs.text)
        text.end()
        if entry.variable is not None:
            entry.variable.done.set_result(outputs)

    def _count(self, usage: Usage) -> None:
        self.record.usage.add(usage)
        self._executor.usage.add(usage)

    def _fork(self, entry: Entry) -> None:
        assert entry.group is not None, entry
        self._groups.append(entry.group)
        for branch in entry.group.lanes:
            branch._tokens = self._tokens.copy()
            branch._roles = self._roles
            branch._close_marker = self._close_marker
            branch._num_inherited = (self._tokens.num_items, len(self._roles))
            branch._may_start.set()

    async def _join(self, node: Join, entry: Entry) -> None:
        group = entry.group
        assert group is not None, entry
        await group.finish()
        self._groups.remove(group)
        if node.mode == "concate_and_append":
            for branch in group.lanes:
                num_items, num_roles = branch._num_inherited
                await self._tokens.extend(branch._tokens.items_since(num_items))
                self._roles += branch._roles[num_roles:]
        for variable in entry.gathered:
            variable.done.set_result(())
