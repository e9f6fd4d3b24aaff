"""The launcher's thread: starts the processes, replaces the dead, ends them all at last.

starting ──▶ running ──▶ draining ──▶ ending ──▶ over
                │            the tokenizer finishes what is open, takes no more
                └─ a process dies: new epoch, a new process
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

import zmq

from ..config import ServerConfig
from ..errors import EspalierError, LaunchError, ModelError
from ..ipc import fork_server, orders, to_launcher
from ..ipc.sockets import Context, Mailbox, Postbox
from ..ipc.wire import PROTOCOL
from ..lifeline import exit_words
from ..scheduler.limits import RequestLimits
from .directory import PrivateDirectory
from .line import Role, launcher_path, orders_path
from .spawn import Child, spawn

logger = logging.getLogger(__name__)

_ROLES: tuple[Role, ...] = ("tokenizer", "detokenizer", "scheduler")
_TICK_S = 1.0  # between pings
_START_S = 60.0  # from a process's start until it is ready, if the watchdog allows less
_END_S = 5.0  # for processes that were told to stop, before they are killed
_MAX_FAILED_STARTS = 3


@dataclass(slots=True)
class _Duty:
    """The process that fills a role, from its first word on."""

    pid: int
    orders: Postbox[orders.Order]
    is_ready: bool = False


class Supervisor:
    """Everything belongs to the first thread that calls `run`, but for `stop` and the futures.

    started: done when all processes are ready, or with why they never were. ended: done when
    nothing of the runtime is left, with an error if it had to give up.
    """

    def __init__(
        self, config: ServerConfig, directory: PrivateDirectory, listener: socket.socket
    ) -> None:
        self.started: Future[None] = Future()
        self.ended: Future[None] = Future()
        self._config = config
        self._directory = directory
        self._listener = listener
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._begun = threading.Lock()  # held from the first call of `run` on, for good
        self._wake_lock = threading.Lock()  # guards `_wake_fd` against its end, and `_stop_at`
        self._stop_at: float | None = None  # set by `stop`
        self._drain_until: float | None = None
        self._error: EspalierError | None = None
        self._epoch = 0
        self._limits: RequestLimits | None = None
        self._children: dict[str, Child] = {}  # direct ones, by module
        self._scheduler_pid: int | None = None
        self._is_loaded = False
        self._reports_fd = -1
        self._report_bytes = b""
        self._duties: dict[Role, _Duty] = {}
        self._failed_starts = dict.fromkeys(_ROLES, 0)
        self._silent_ticks = dict.fromkeys(_ROLES, 0)  # since its process was last heard of
        self._context: Context = zmq.Context()
        self._mailbox: Mailbox[to_launcher.ToLauncher] = Mailbox(
            self._context, launcher_path(directory.path), to_launcher.WIRE
        )
        self._next_ping = 0

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, by name, as far as this is known; for any thread."""
        pids = {name: child.pid for name, child in self._children.copy().items()}
        scheduler = self._scheduler_pid
        return pids if scheduler is None else {**pids, "scheduler": scheduler}

    def stop(self, drain_s: float) -> None:
        """Have it end within about `drain_s`; a later call may only shorten that."""
        stop_at = time.monotonic() + drain_s
        with self._wake_lock:
            if self._stop_at is None or stop_at < self._stop_at:
                self._stop_at = stop_at
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def run(self) -> None:
        """Until it is over; leaves no process and no file behind. Later calls do nothing."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            if self._stop_at is None:
                for role in ("scheduler", "tokenizer", "detokenizer"):  # the slowest first
                    self._start(role)
            tick_at = time.monotonic() + _TICK_S
            while self._error is None and not self._is_drained():
                self._turn(max(0.0, tick_at - time.monotonic()))
                if time.monotonic() >= tick_at:
                    self._tick()
                    tick_at = time.monotonic() + _TICK_S
            self._end_processes()
        except BaseException as error:  # a bug here; whoever waits is told, nothing is left
            logger.exception("the launcher failed")
            self._error = LaunchError(f"the launcher failed: {error!r}")
        finally:
            try:
                self._clean_up()
            finally:
                self._tell_the_end()

    # -- one turn ----------------------------------------------------------------------------

    def _turn(self, timeout_s: float) -> None:
        """Wait for something to happen, and handle it."""
        poller = zmq.Poller()
        poller.register(self._mailbox.socket, zmq.POLLIN)
        by_fd = {child.fd: name for name, child in self._children.items()}
        for fd in (self._wake_fd, self._reports_fd, *by_fd):
            if fd >= 0:
                poller.register(fd, zmq.POLLIN)
        events = [source for source, _ in poller.poll(int(timeout_s * 1000) + 1)]
        if self._wake_fd in events:
            os.eventfd_read(self._wake_fd)
        self._read_reports()
        for message in self._mailbox.drain():
            self._take(message)
        for fd in events:
            if fd in by_fd:
                self._child_ended(by_fd[fd])

    def _take(self, message: to_launcher.ToLauncher) -> None:
        match message:
            case to_launcher.Hello(protocol, role, pid):
                self._read_reports()  # whose process it is was reported before it spoke
                for known in _ROLES:
                    if role == known and pid == self._pid_of(known):
                        self._welcome(known, protocol, pid)
            case to_launcher.Ready(pid, limits):
                self._is_ready(pid, limits)
            case to_launcher.Pong(pid):
                for role, duty in self._duties.items():
                    if duty.pid == pid:
                        self._silent_ticks[role] = 0
            case to_launcher.Failed(_, reason):
                self._give_up(ModelError(reason))

    def _welcome(self, role: Role, protocol: str, pid: int) -> None:
        if protocol != PROTOCOL:
            self._give_up(LaunchError(f"the {role} process speaks {protocol}, not {PROTOCOL}"))
            return
        postbox = Postbox(self._context, orders_path(self._directory.path, role), orders.WIRE)
        self._duties[role] = _Duty(pid, postbox)
        postbox.try_send(orders.Begin(self._epoch))

    def _is_ready(self, pid: int, limits: RequestLimits | None) -> None:
        for role, duty in self._duties.items():
            if duty.pid == pid:
                duty.is_ready = True
                self._silent_ticks[role] = self._failed_starts[role] = 0
        self._limits = limits or self._limits
        self._serve_if_ready()

    def _serve_if_ready(self) -> None:
        if len(self._duties) < len(_ROLES) or not all(d.is_ready for d in self._duties.values()):
            return
        assert self._limits is not None, "the scheduler gives its limits when it is ready"
        self._duties["tokenizer"].orders.try_send(orders.Serve(self._epoch, self._limits))
        if not self.started.done():
            self.started.set_result(None)

    def _tick(self) -> None:
        """Ask every process whether its loop runs; replace those that stay silent.

        Silence is counted in ticks, not by a clock: it is not theirs while this process was
        stopped itself.
        """
        self._next_ping += 1
        for role in _ROLES:
            if role == "scheduler" and not self._is_loaded:
                continue  # loading takes as long as it takes
            if role not in self._duties and self._drain_until is not None:
                continue  # nothing is replaced any more
            self._silent_ticks[role] += 1
            duty = self._duties.get(role)
            is_ready = duty is not None and duty.is_ready
            limit_s = self._config.watchdog_timeout_s
            silence_s = self._silent_ticks[role] * _TICK_S
            if silence_s > (limit_s if is_ready else max(limit_s, _START_S)):
                logger.error("the %s process is silent for %.0f s: killed", role, silence_s)
                self._kill(role)
            elif duty is not None and is_ready:
                duty.orders.try_send(orders.Ping(self._next_ping))

    def _kill(self, role: Role) -> None:
        """The scheduler with its fork server, as either may be the one that is stuck."""
        self._children["fork_server" if role == "scheduler" else role].kill()

    # -- life and death ----------------------------------------------------------------------

    def _start(self, role: Role) -> None:
        path = self._directory.path
        self._silent_ticks[role] = 0
        if role != "scheduler":
            fd = self._listener.fileno() if role == "tokenizer" else -1
            self._children[role] = spawn(role, self._config, path, fd=fd)
        elif self._is_loaded:
            self._children["fork_server"].tell(fork_server.FORK)
        elif "fork_server" not in self._children:
            self._start_fork_server()

    def _start_fork_server(self) -> None:
        self._reports_fd, write_fd = os.pipe()
        os.set_blocking(self._reports_fd, False)
        self._report_bytes = b""
        self._children["fork_server"] = spawn(
            "fork_server", self._config, self._directory.path, fd=write_fd, keep_stdin=True
        )
        os.close(write_fd)

    def _pid_of(self, role: Role) -> int | None:
        if role == "scheduler":
            return self._scheduler_pid
        return self._children[role].pid if role in self._children else None

    def _read_reports(self) -> None:
        """What the fork server says of itself and of the schedulers that it forked."""
        while self._reports_fd >= 0:
            try:
                data = os.read(self._reports_fd, 65536)
            except BlockingIOError:
                return
            if not data:
                self._close_reports()
                return
            *lines, self._report_bytes = (self._report_bytes + data).split(b"\n")
            for line in lines:
                self._hear(fork_server.DECODER.decode(line))

    def _close_reports(self) -> None:
        if self._reports_fd >= 0:
            os.close(self._reports_fd)
            self._reports_fd = -1

    def _hear(self, report: fork_server.ForkReport) -> None:
        match report:
            case fork_server.Loaded():
                self._is_loaded = True
                self._start("scheduler")
            case fork_server.Forked(pid):
                self._scheduler_pid = pid
            case fork_server.Exited(_, status):
                self._scheduler_pid = None
                self._lost("scheduler", exit_words(status))

    def _child_ended(self, name: str) -> None:
        how = self._children.pop(name).wait()
        if name != "fork_server":
            self._lost("tokenizer" if name == "tokenizer" else "detokenizer", how)
            return
        self._read_reports()
        self._close_reports()  # its scheduler, which dies with it, may hold the other end still
        self._is_loaded, self._scheduler_pid = False, None
        self._lost("scheduler", f"its fork server: {how}")

    def _lost(self, role: Role, how: str) -> None:
        """The process of `role` is gone: tell the others, and start a new one."""
        duty = self._duties.pop(role, None)
        if duty is not None:
            duty.orders.close()
        if self._error is not None or self._drain_until is not None and role == "tokenizer":
            return  # it was to end
        why = f"the {role} process ended ({how})"
        if not self.started.done():
            self._give_up(LaunchError(f"{why} while the runtime started"))
            return
        self._epoch += 1
        for other in self._duties.values():
            other.orders.try_send(orders.NewEpoch(self._epoch, why))
        if self._drain_until is not None:
            return
        logger.error("%s; starting another", why)
        if duty is None or not duty.is_ready:
            self._failed_starts[role] += 1
        if self._failed_starts[role] >= _MAX_FAILED_STARTS:
            self._give_up(LaunchError(f"{why} again and again, before it was ready"))
            return
        self._start(role)

    # -- the end -----------------------------------------------------------------------------

    def _give_up(self, error: EspalierError) -> None:
        self._error = self._error or error

    def _is_drained(self) -> bool:
        """Whether it was told to stop, and the tokenizer has finished what was open."""
        if self._stop_at is None:
            return False
        if self._drain_until is None or self._stop_at < self._drain_until:
            self._drain_until = self._stop_at
            self._listener.close()
            if (duty := self._duties.get("tokenizer")) is not None:
                left_s = max(0.0, self._stop_at - time.monotonic())
                duty.orders.try_send(orders.Drain(left_s))
        is_starting = "tokenizer" not in self._duties
        return is_starting or time.monotonic() > self._drain_until + _END_S

    def _end_processes(self) -> None:
        """Those that can hear it are told; what does not end in time is killed."""
        self._drain_until = self._drain_until or time.monotonic()
        for duty in self._duties.values():
            duty.orders.try_send(orders.Stop())
        for name, child in self._children.items():
            child.end_input()
            role = "scheduler" if name == "fork_server" else name
            if role not in self._duties or not self.started.done():
                child.kill()  # it could not hear, or has nothing to lose
        deadline = time.monotonic() + _END_S
        while self._children and time.monotonic() < deadline:
            self._turn(deadline - time.monotonic())

    def _clean_up(self) -> None:
        for child in self._children.values():
            child.kill()  # the fork server's scheduler dies with it
            child.wait()
        for duty in self._duties.values():
            duty.orders.close()
        self._mailbox.close()
        self._context.term()
        self._listener.close()
        self._close_reports()
        with self._wake_lock:
            os.close(self._wake_fd)
            self._wake_fd = -1
        self._directory.close()

    def _tell_the_end(self) -> None:
        if not self.started.done():
            self.started.set_exception(self._error or LaunchError("stopped while it started"))
        if self._error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(self._error)
