"""Launcher to any process: the epoch, and what supervision asks of it."""

from __future__ import annotations

import msgspec

from ..scheduler.limits import RequestLimits
from .wire import Wire


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Hello`: the process is taken, in this epoch."""

    epoch: int


class NewEpoch(msgspec.Struct, frozen=True, tag=True):
    """A process died: every open request of an older epoch is over, and so are its messages.

    Epochs only grow, so whoever meets a newer one in any message goes there first.
    """

    epoch: int
    why: str


class Serve(msgspec.Struct, frozen=True, tag=True):
    """All processes of this epoch are ready; for the tokenizer process."""

    epoch: int
    limits: RequestLimits


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Answered by the process's main loop, so that the answer says that the loop runs."""

    number: int


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Take no more requests, finish the open ones within the deadline, abort the rest, stop."""

    deadline_s: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End now."""


Order = Begin | NewEpoch | Serve | Ping | Drain | Stop
WIRE: Wire[Order] = Wire(Order)
