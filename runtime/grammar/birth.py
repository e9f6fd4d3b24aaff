"""How a zygote comes into being: as a program of its own, or forked from who has the engines.

Reading the engines into memory takes seconds of a core, which whoever generates meanwhile lacks.
A fork of a process that has them takes none.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ..ipc.compiling import SETTINGS, ZygoteSettings
from ..lifeline import begin_as, exit_words, import_path
from .engines import Engines
from .vocabulary import Vocabulary
from .zygote import serve_orders


class Process(Protocol):
    """A child of this process."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None:
        """Idempotent, also where it has ended."""

    def wait(self) -> int:
        """Its exit status, or minus the number of a signal. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Newborn:
    """A zygote that may not be ready yet; `control` is this process's end, and does not block."""

    process: Process
    control: socket.socket

    def end(self) -> str:
        """Kill it, and wait until it has gone: how it ended, in words."""
        self.control.close()
        self.process.kill()
        return exit_words(self.process.wait())


def spawn_zygote(vocabulary: Vocabulary, max_job_bytes: int) -> Newborn:
    """One that reads the engines first. It dies with the thread that calls this.

    A process group of its own, so that Ctrl-C in the terminal does not reach it, but no
    session: some kernels share the processors out by sessions first, over all priorities.
    """
    ours, theirs = _control()
    settings = ZygoteSettings(vocabulary, theirs.fileno(), os.getpid(), max_job_bytes)
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # none would survive a fork
    with theirs, os.fdopen(os.memfd_create("zygote-settings"), "w+b") as file:
        file.write(SETTINGS.encode(settings))
        file.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "espalier.runtime.grammar.zygote"],
            stdin=file,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **threads, "PYTHONPATH": import_path()},
            pass_fds=(theirs.fileno(),),
            process_group=0,
        )
    return Newborn(process, ours)


def fork_zygote(engines: Engines, max_job_bytes: int) -> Newborn:
    """One that has these engines. It dies with the thread that calls this.

    Only while that thread is the process's only one: a lock that another held would stay held.
    """
    ours, theirs = _control()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os._exit(_be_zygote(parent, ours, theirs, engines, max_job_bytes))
    theirs.close()
    return Newborn(_Forked(pid), ours)


def _be_zygote(
    parent: int,
    ours: socket.socket,
    theirs: socket.socket,
    engines: Engines,
    max_job_bytes: int,
) -> int:
    """The forked process, from here to its end; its exit status."""
    try:
        begin_as("zygote", parent)
        ours.close()
        serve_orders(theirs, engines, max_job_bytes)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()
    return 0


class _Forked:
    """What `subprocess.Popen` is to a program."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def kill(self) -> None:
        if self._status is None:  # not waited for, so that the number is still its own
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._status is None:
            _, status = os.waitpid(self.pid, 0)
            self._status = os.waitstatus_to_exitcode(status)
        return self._status


def _control() -> tuple[socket.socket, socket.socket]:
    """Of packets: ours and the zygote's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs
