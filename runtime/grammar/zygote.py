"""The zygote: has the grammar engines in memory, and forks workers, in milliseconds.

Run as `python -m espalier.runtime.grammar.zygote`, or in a process forked for it. It stays on one
thread and never computes, so that a forked worker finds nothing in a state that it can't use, and
orders are obeyed at once. It alone knows the workers' process ids, as it alone knows who was
waited for.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..ipc.compiling import (
    ORDERS,
    REPORTS,
    SETTINGS,
    Demote,
    Exited,
    Fork,
    Kill,
    Ready,
    Report,
    ZygoteSettings,
)
from ..lifeline import begin_as

if TYPE_CHECKING:
    from .engines import Engines

_MAX_ORDER_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Child:
    """A worker that was not waited for yet; `fd` becomes readable when it ends."""

    pid: int
    fd: int


class Zygote:
    """Obeys who holds the other end of `control`; `serve` is what a worker does all its life."""

    def __init__(self, control: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        self._control = control
        self._serve = serve
        self._children: dict[int, _Child] = {}  # by the worker's number

    def run(self) -> None:
        self._report(Ready())
        control = self._control.fileno()
        while True:
            fds = {child.fd: number for number, child in self._children.items()}
            ready, _, _ = select.select([control, *fds], [], [])
            for fd in fds.keys() & set(ready):
                self._reap(fds[fd])
            if control in ready and not self._obey():
                return

    def _obey(self) -> bool:
        """Take one order; False if there will be no more."""
        data, descriptors, _, _ = socket.recv_fds(self._control, _MAX_ORDER_BYTES, 1)
        if not data:
            return False
        match ORDERS.decode(data):
            case Fork(number):
                [descriptor] = descriptors
                self._fork(number, socket.socket(fileno=descriptor))
            case Kill(number):
                if number in self._children:
                    os.kill(self._children[number].pid, signal.SIGKILL)
            case Demote(number):
                if number in self._children:
                    pid = self._children[number].pid
                    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        return True

    def _fork(self, number: int, connection: socket.socket) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os._exit(self._be_worker(parent, connection))
        connection.close()  # else nobody would see it end with the worker
        self._children[number] = _Child(pid, os.pidfd_open(pid))

    def _be_worker(self, parent: int, connection: socket.socket) -> int:
        """The forked process, from here to its end; its exit status."""
        try:
            begin_as("compiler", parent)
            self._control.close()
            for child in self._children.values():
                os.close(child.fd)
            self._serve(connection)
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            sys.stderr.flush()
        return 0

    def _reap(self, number: int) -> None:
        child = self._children.pop(number)
        _, status = os.waitpid(child.pid, 0)
        os.close(child.fd)
        self._report(Exited(number, os.waitstatus_to_exitcode(status)))

    def _report(self, report: Report) -> None:
        self._control.send(REPORTS.encode(report))


def serve_orders(control: socket.socket, engines: Engines, max_job_bytes: int) -> None:
    """Be a zygote until the other end of `control` closes."""
    from .worker import serve

    zygote = Zygote(control, partial(serve, engines=engines, max_job_bytes=max_job_bytes))
    with suppress(ConnectionError):  # the parent has gone
        zygote.run()


def main() -> None:
    settings: ZygoteSettings = SETTINGS.decode(sys.stdin.buffer.read())
    begin_as("zygote", settings.parent_pid)
    from .engines import Engines  # and so torch: only now that it dies with its parent

    engines = Engines(settings.vocabulary)
    engines.warm_up()
    gc.freeze()  # else a collection in a worker would touch, and so copy, every page
    serve_orders(socket.socket(fileno=settings.control), engines, settings.max_job_bytes)


if __name__ == "__main__":
    main()
