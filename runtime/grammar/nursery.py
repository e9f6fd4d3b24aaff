"""The scheduler process's end of a zygote and its workers: asked, demoted, killed, mourned.

For one event loop, on the thread that starts the zygote: all of them die with that thread.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import msgspec

from ..ipc.compiling import (
    ANSWERS,
    ORDERS,
    REPORTS,
    Answer,
    Begun,
    Demote,
    Fork,
    Kill,
    Order,
    Ready,
)
from ..ipc.frames import receive_frame_async, send_frame_async
from ..lifeline import exit_words
from .birth import Newborn

_MAX_REPORT_BYTES = 1024
_START_S = 120.0  # torch may have to come from a slow disk


class WorkerLost(Exception):
    """No fault of the job: its worker never had it, or ended with its zygote."""


class WorkerCrashed(Exception):
    """The worker ended over the job; the message says how."""


class Nursery:
    """A running zygote. When it is dead, nobody comes out of it any more."""

    def __init__(self, zygote: Newborn) -> None:
        loop = asyncio.get_running_loop()
        self._zygote = zygote
        self._control = zygote.control
        self._workers: dict[int, Worker] = {}  # that have not ended
        self._next_number = 0
        self._readiness: asyncio.Future[None] = loop.create_future()
        self._listening = loop.create_task(self._listen())
        self.is_dead = False

    @property
    def pid(self) -> int:
        """Of the zygote."""
        return self._zygote.process.pid

    @classmethod
    async def open(cls, zygote: Newborn) -> Nursery:
        """Takes it over, and waits until it is ready. Raises `WorkerLost` if it never is."""
        nursery = cls(zygote)
        try:
            async with asyncio.timeout(_START_S):
                await nursery._readiness
        except BaseException as error:
            await nursery.end()
            if isinstance(error, TimeoutError):
                raise WorkerLost(f"it was not ready after {_START_S:g} s") from None
            raise
        return nursery

    def fork(self) -> Worker:
        """A new worker, or one that is about to be."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._next_number += 1
        worker = self._workers[self._next_number] = Worker(self, self._next_number, ours)
        with theirs:
            self.tell(Fork(worker.number), theirs)
        return worker

    def tell(self, order: Order, *sockets: socket.socket) -> None:
        """A dead zygote hears nothing, as everybody who waits for its workers will find out."""
        if self.is_dead:
            return
        try:
            descriptors = [each.fileno() for each in sockets]
            socket.send_fds(self._control, [ORDERS.encode(order)], descriptors)
        except ConnectionError:
            pass  # `_listen` is about to see it
        except BlockingIOError:  # one that does not read its orders is of no use
            self._zygote.process.kill()

    async def end(self) -> None:
        """Kill the zygote and with it every worker, and wait until it has gone. Idempotent."""
        self._zygote.process.kill()
        await asyncio.shield(self._listening)

    async def _listen(self) -> None:
        """Hear the zygote's reports to its end."""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self._control, _MAX_REPORT_BYTES):
                report = REPORTS.decode(data)
                if isinstance(report, Ready):
                    if not self._readiness.done():  # whoever started it may have gone
                        self._readiness.set_result(None)
                else:
                    self._workers.pop(report.worker).has_ended(exit_words(report.status))
        except ConnectionError:
            pass  # it ended with an order unread
        finally:
            self._bury()

    def _bury(self) -> None:
        self.is_dead = True
        words = self._zygote.end()  # it may have closed its end before its own
        for worker in self._workers.values():
            worker.has_ended(None)
        self._workers.clear()
        if not self._readiness.done():
            self._readiness.set_exception(WorkerLost(f"it ended with {words}"))


class Worker:
    """One worker; of no use any more after an error or a cancellation of `ask`."""

    def __init__(self, nursery: Nursery, number: int, connection: socket.socket) -> None:
        self.number = number
        self.num_jobs = 0
        self._nursery = nursery
        self._connection = connection
        self._end = asyncio.Event()
        self._how: str | None = None

    @property
    def is_dead(self) -> bool:
        return self._end.is_set()

    def has_ended(self, how: str | None) -> None:
        """For the nursery: it ended by itself, and how, or (None) with its zygote."""
        self._how = how
        self._end.set()

    async def ask(self, job: bytes) -> Answer:
        """The answer to an encoded `Job`. Raises `WorkerLost` or `WorkerCrashed`."""
        self.num_jobs += 1
        with suppress(ConnectionError):
            await send_frame_async(self._connection, job)
        if await self._receive() is None:
            await self._end.wait()
            raise WorkerLost("a worker ended before it had the job")
        answer = await self._receive()
        if answer is None:
            await self._end.wait()
            raise WorkerLost("it died") if self._how is None else WorkerCrashed(self._how)
        assert not isinstance(answer, Begun), "begun twice"
        return answer

    def demote(self) -> None:
        """From now on it gets only what nobody else wants of the processors."""
        self._nursery.tell(Demote(self.number))

    def retire(self) -> None:
        """Let it end. Not while it is asked."""
        self._connection.close()

    def kill(self) -> None:
        """Not while it is asked: cancel that first."""
        self._nursery.tell(Kill(self.number))
        self._connection.close()

    async def _receive(self) -> Begun | Answer | None:
        """None at its end. One that sends nonsense is as good as dead."""
        try:
            frame = await receive_frame_async(self._connection)
            return None if frame is None else ANSWERS.decode(frame)
        except (ValueError, msgspec.DecodeError):
            self._nursery.tell(Kill(self.number))
            return None
