"""Fork server to launcher, as lines of JSON on a pipe; what it is asked is one word a line."""

from __future__ import annotations

import msgspec

FORK = b"fork\n"
"""The only thing it is asked. The end of its input is the order to stop."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is in memory; schedulers can be forked."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """A scheduler process runs."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """It ended; `status` is an exit status, or minus the number of a signal."""

    pid: int
    status: int


ForkReport = Loaded | Forked | Exited
DECODER: msgspec.json.Decoder[ForkReport] = msgspec.json.Decoder(ForkReport)


def encode(report: ForkReport) -> bytes:
    return msgspec.json.encode(report) + b"\n"
