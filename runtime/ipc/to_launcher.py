"""Any process to the launcher: reports of its state."""

from __future__ import annotations

import msgspec

from ..scheduler.limits import RequestLimits
from .wire import Wire


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message of a process. `protocol` is its own `wire.PROTOCOL`."""

    protocol: str
    role: str
    pid: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """It can work now; the scheduler says what requests it can serve."""

    pid: int
    limits: RequestLimits | None = None


class Pong(msgspec.Struct, frozen=True, tag=True):
    """The answer to a `Ping`."""

    pid: int
    number: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It can't start, by the user's fault: a model or an option that does not work."""

    pid: int
    message: str


ToLauncher = Hello | Ready | Pong | Failed
WIRE: Wire[ToLauncher] = Wire(ToLauncher)
