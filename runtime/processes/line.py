"""A process's connections: its two mailboxes, and the ways into those of others.

    <directory>/launcher.news        reports of all processes
    <directory>/<role>.orders        what the launcher asks of it
    <directory>/<role>.news          what its peers send it

Orders have a mailbox of their own, so that they arrive also where news have piled up.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

import zmq

from ..ipc import orders, to_launcher
from ..ipc.sockets import Broadcast, Context, Mailbox, Postbox
from ..ipc.to_launcher import Hello
from ..ipc.wire import PROTOCOL, Wire

Role = Literal["tokenizer", "scheduler", "detokenizer"]
T = TypeVar("T")
N = TypeVar("N")

_HANDSHAKE_S = 30.0


def launcher_path(directory: Path) -> Path:
    return directory / "launcher.news"


def orders_path(directory: Path, role: Role) -> Path:
    return directory / f"{role}.orders"


def news_path(directory: Path, role: Role) -> Path:
    return directory / f"{role}.news"


class Waiting(NamedTuple):
    """Which mailbox has something in it."""

    orders: bool
    news: bool


class Line(Generic[N]):
    """The connections of a process in `role`, whose news come in `wire`."""

    def __init__(self, directory: str, role: Role, wire: Wire[N]) -> None:
        self._context: Context = zmq.Context()
        self._directory = Path(directory)
        self._role = role
        self.orders = Mailbox(self._context, orders_path(self._directory, role), orders.WIRE)
        self.news = Mailbox(self._context, news_path(self._directory, role), wire)
        self.launcher = self.to_launcher()
        self._poller = zmq.Poller()
        self._poller.register(self.orders.socket, zmq.POLLIN)
        self._poller.register(self.news.socket, zmq.POLLIN)

    def to_launcher(self) -> Postbox[to_launcher.ToLauncher]:
        """A postbox for the calling thread."""
        return Postbox(self._context, launcher_path(self._directory), to_launcher.WIRE)

    def to(self, role: Role, wire: Wire[T]) -> Postbox[T]:
        """A postbox for the calling thread."""
        return Postbox(self._context, news_path(self._directory, role), wire)

    def broadcast(self, endpoint: str, wire: Wire[T]) -> Broadcast[T]:
        """A way out to anybody, for the calling thread. Raises `LaunchError`."""
        return Broadcast(self._context, endpoint, wire)

    def report_for_duty(self) -> int:
        """Say hello to the launcher; the epoch in which this process begins.

        What peers sent before belongs to older epochs.
        """
        self.launcher.try_send(Hello(PROTOCOL, self._role, os.getpid()))
        order = self.orders.receive(_HANDSHAKE_S)
        assert isinstance(order, orders.Begin), f"the launcher answered {order!r}"
        for _ in self.news.drain():
            pass
        return order.epoch

    def wait(self) -> Waiting:
        """Wait until there is an order or news; which of them."""
        ready = dict(self._poller.poll())
        return Waiting(self.orders.socket in ready, self.news.socket in ready)

    def close(self, linger_s: float = 0.0) -> None:
        """Close what this object opened for its own thread; its context stays for the others."""
        self.orders.close()
        self.news.close()
        self.launcher.close(linger_s)


def report_failure(directory: str, message: str) -> None:
    """Tell the launcher why this process can't do its work, by the user's fault."""
    context: Context = zmq.Context()
    postbox = Postbox(context, launcher_path(Path(directory)), to_launcher.WIRE)
    postbox.try_send(to_launcher.Failed(os.getpid(), message))
    postbox.close(linger_s=1.0)
    context.term()
