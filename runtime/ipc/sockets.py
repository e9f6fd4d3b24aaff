"""Mailboxes and the way into them, and broadcasts: bounded ZeroMQ queues.

A process owns one mailbox (PULL, bound); whoever writes to it has a postbox (PUSH). No send
waits for ever: it says that the queue is full, or asks whether to go on waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import zmq

from ..errors import LaunchError
from .wire import Wire

T = TypeVar("T")
Context = zmq.Context[zmq.Socket[bytes]]

MAX_QUEUED_MESSAGES = 1000
_PATIENCE_MS = 50


class Mailbox(Generic[T]):
    """Messages for this process, from any number of senders; for one thread."""

    def __init__(self, context: Context, path: Path, wire: Wire[T]) -> None:
        self.socket = context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.set_hwm(MAX_QUEUED_MESSAGES)
        self.socket.bind(f"ipc://{path}")
        self._wire = wire

    @property
    def fd(self) -> int:
        """Becomes readable when there may be news; after it, drain until nothing is left."""
        return int(self.socket.getsockopt(zmq.FD))

    def receive(self, timeout_s: float | None = None) -> T | None:
        """The next message; None if there is none within the time (None: wait for ever)."""
        timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        if not self.socket.poll(timeout_ms):
            return None
        return self._wire.decode(self.socket.recv())

    def receive_ready(self) -> T | None:
        """The next message if there is one now."""
        try:
            return self._wire.decode(self.socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def drain(self) -> Iterator[T]:
        """What is there now, without waiting."""
        while (message := self.receive_ready()) is not None:
            yield message

    def close(self) -> None:
        self.socket.close(linger=0)


class Postbox(Generic[T]):
    """The way into another process's mailbox, which may not be there yet; for one thread."""

    def __init__(self, context: Context, path: Path, wire: Wire[T]) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)  # else the process could not end
        self._socket.set_hwm(MAX_QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.connect(f"ipc://{path}")
        self._wire = wire

    def try_send(self, message: T) -> bool:
        """Queue `message`; whether there was room."""
        try:
            self._socket.send(self._wire.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def send(self, message: T, give_up: Callable[[], bool]) -> bool:
        """Queue `message`, waiting for room until `give_up()`; whether it is queued."""
        while not self.try_send(message):
            if give_up():
                return False
            self._socket.poll(_PATIENCE_MS, zmq.POLLOUT)
        return True

    def close(self, linger_s: float = 0.0) -> None:
        """Forget what is still queued after `linger_s`."""
        self._socket.close(linger=int(linger_s * 1000))


class Broadcast(Generic[T]):
    """Messages for anybody who subscribes; for one thread.

    Never waits: a subscriber whose queue is full misses what is sent then.
    """

    def __init__(self, context: Context, endpoint: str, wire: Wire[T]) -> None:
        """Raises `LaunchError` where `endpoint` can't be bound."""
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.set_hwm(MAX_QUEUED_MESSAGES)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise LaunchError(f"nothing can be published at {endpoint}: {error}") from None
        self._endpoint = endpoint
        self._wire = wire

    def send(self, message: T) -> None:
        self._socket.send(self._wire.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        """Forget what is still queued, and leave no file behind: ZeroMQ would."""
        self._socket.close(linger=0)
        path = self._endpoint.removeprefix("ipc://")
        if path != self._endpoint and not path.startswith("@"):  # an abstract one has no file
            Path(path).unlink(missing_ok=True)
